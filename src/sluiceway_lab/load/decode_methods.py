"""Creates the compared methods for one model, from its files, or for a small random model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS, ModelFiles, ModelKind
from sluiceway.model.checkpoint import Shape, check_shapes, expected_shapes
from sluiceway.model.config import ModelConfig
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.load import load_weights, open_checkpoint
from sluiceway.model.rope import Rope
from sluiceway.model.weight_format import TorchFormat, resolve_dtype
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.decoding import (
    CPU,
    DecodeMethod,
    DecoderModel,
    GatherDecoder,
    LayerDecoder,
    NoAttention,
    TableAttention,
)

_TINY = ModelConfig(
    architecture="llama",
    n_layers=2,
    hidden_size=64,
    intermediate_size=96,
    n_heads=4,
    n_kv_heads=2,
    head_dim=32,
    vocab_size=160,
    max_model_len=1024,
    rms_eps=1e-5,
    rope_theta=1e4,
)
_SPREAD = 0.1


def model_of(files: ModelFiles, seed: int) -> DecoderModel:
    """Load the model in the dtype that is best here without native matrix products. Raises `ModelSourceError`."""
    form = TorchFormat(resolve_dtype("auto", CPU), CPU)
    checkpoint, config = (RandomCheckpoint(seed), _TINY) if files.kind is ModelKind.FAKE else open_checkpoint(files)
    check_shapes(expected_shapes(config), checkpoint.shapes, files.path)
    weights = load_weights(checkpoint, config, form)
    rope = Rope(config, CPU, form.dtype, checkpoint.frequency_divisors())
    return DecoderModel(config, weights, rope, form.dtype)


def methods_of(model: DecoderModel, n_blocks: int, seed: int) -> tuple[DecodeMethod, DecodeMethod, DecodeMethod]:
    """Create three methods: with the gather, with the kernel, without attention.

    Their caches have `n_blocks` blocks with the same content. Raises `LoadError` without native kernels.
    """
    kernels = best_kernels()
    if kernels is None:
        raise LoadError("the native kernels, which are one side of this comparison, are not built here")
    methods = (
        GatherDecoder(model, n_blocks),
        LayerDecoder(model, TableAttention(model, n_blocks, kernels)),
        LayerDecoder(model, NoAttention()),
    )
    shape = (n_blocks * BLOCK_TOKENS, model.config.n_kv_heads, model.config.head_dim)
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(shape, generator=generator).to(model.dtype) for _ in range(2))
    for method in methods:
        method.fill(keys, values)
    return methods


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Set the threads of torch for the length of the block. 0 is one for each available core."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RandomCheckpoint:
    """Implements `Checkpoint` with random numbers for a tiny model. Vectors are ones."""

    def __init__(self, seed: int) -> None:
        self.shapes: Mapping[str, Shape] = expected_shapes(_TINY)
        self._generator = torch.Generator().manual_seed(seed)

    def source_bytes(self, name: str) -> int:
        return 0

    def read_into(self, name: str, out: Tensor) -> None:
        if out.dim() == 1:
            out.fill_(1.0)
        else:
            out.normal_(0.0, _SPREAD, generator=self._generator)

    def mapped(self, name: str, dtype: torch.dtype) -> Tensor | None:
        return None

    def frequency_divisors(self) -> Tensor | None:
        return None
