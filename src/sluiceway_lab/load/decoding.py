"""Decoders on the CPU that differ in their attention alone, for one model from its files, or for a small random one.

`GatherDecoder` is the product's decoder without native kernels. `LayerDecoder` computes the same layers, with the
attention as an argument: `TableAttention` is a native kernel that reads keys and values in place, through the block
table. Without attention, it shows the cost of the rest.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sluiceway.config import BLOCK_TOKENS, ModelFiles, ModelKind
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.batch import build_batch
from sluiceway.model.checkpoint import Shape, check_shapes, expected_shapes
from sluiceway.model.config import ModelConfig
from sluiceway.model.decoder import TorchDecoder
from sluiceway.model.kernels import binding
from sluiceway.model.kernels.decoder import StepArrays
from sluiceway.model.kernels.loader import best_kernels, pool
from sluiceway.model.kv import KVCache
from sluiceway.model.layers import rms_norm, swiglu
from sluiceway.model.linear import Linear
from sluiceway.model.load import load_weights, open_checkpoint
from sluiceway.model.rope import Rope, rotate
from sluiceway.model.weight_format import TorchFormat, resolve_dtype
from sluiceway.model.weights import DecoderWeights
from sluiceway.types import SamplingParams
from sluiceway_lab.load.client import LoadError

DecodeRow: TypeAlias = Row
"""A row of a batch, as `row_of` makes it."""
CPU = torch.device("cpu")
_HEAD_MULTIPLE = 32
_PAIR = 2
_LANES = 16
_TINY = ModelConfig(
    architecture="LlamaForCausalLM",
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


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """The model that all methods share. `dtype` is that of its weights."""

    config: ModelConfig
    weights: DecoderWeights[Linear]
    rope: Rope
    dtype: torch.dtype


class DecodeMethod(Protocol):
    """Computes steps of the model, with its own cache."""

    def fill(self) -> None:
        """Write numbers into the whole cache, so that its memory is in use when steps are timed."""

    def step(self, rows: Sequence[Row]) -> Tensor:
        """Return the logits (rows that sample, vocab_size)."""


class GatherDecoder:
    """Implements `DecodeMethod` as the product does without native kernels."""

    def __init__(self, model: DecoderModel, n_blocks: int) -> None:
        self._model = model
        self._n_blocks = n_blocks
        self._decoder = TorchDecoder(model.config, model.weights, model.rope)
        self._cache = KVCache(model.config, n_blocks, model.dtype, CPU)

    def fill(self) -> None:
        config, n_tokens = self._model.config, self._n_blocks * BLOCK_TOKENS
        numbers = torch.randn(n_tokens, config.n_kv_heads, config.head_dim).to(self._model.dtype)
        slots = torch.arange(n_tokens * config.n_kv_heads)
        for layer in range(config.n_layers):
            self._cache.write(layer, slots, numbers, numbers)

    def step(self, rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            return self._decoder.forward(build_batch(rows, self._model.config, self._model.dtype, CPU), self._cache)


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """The position of each token of a step, its block, and its slot in the block."""

    arrays: StepArrays
    positions: Tensor
    blocks: Tensor
    slots: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row]) -> TokenPlaces:
        arrays = StepArrays.of(rows)
        row = np.repeat(np.arange(len(rows)), np.diff(arrays.first))
        positions = arrays.start[row] + np.arange(len(row)) - arrays.first[row]
        blocks = arrays.blocks[arrays.first_block[row] + positions // BLOCK_TOKENS].astype(np.int64)
        found = (torch.from_numpy(values) for values in (positions, blocks, positions % BLOCK_TOKENS))
        return cls(arrays, *found)


class LayerDecoder:
    """Implements `DecodeMethod` with the given attention, or with none: then it takes the queries for the result."""

    def __init__(self, model: DecoderModel, attention: TableAttention | None) -> None:
        self._model = model
        self._attention = attention

    def fill(self) -> None:
        if self._attention is not None:
            self._attention.fill()

    def step(self, rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            return self._forward(TokenPlaces.of(rows))

    def _forward(self, places: TokenPlaces) -> Tensor:
        config, weights = self._model.config, self._model.weights
        assert weights.embedding is not None
        angles = self._model.rope.angles(places.positions)
        x = functional.embedding(torch.from_numpy(places.arrays.tokens), weights.embedding)
        n_rotated = config.n_heads + config.n_kv_heads
        for index, layer in enumerate(weights.layers):
            heads = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), -1, config.head_dim)
            queries, keys = heads[:, : config.n_heads], heads[:, config.n_heads : n_rotated]
            if layer.q_norm is not None and layer.k_norm is not None:
                queries, keys = self._norm(queries, layer.q_norm), self._norm(keys, layer.k_norm)
            rotated = rotate(torch.cat((queries, keys), dim=1), *angles)
            queries, keys = rotated[:, : config.n_heads], rotated[:, config.n_heads :]
            if self._attention is None:
                attended = queries.flatten(1)
            else:
                attended = self._attention.attend(index, places, queries, keys, heads[:, n_rotated:])
            x = x + layer.out(attended)
            x = x + layer.down(swiglu(layer.gate_up(self._norm(x, layer.mlp_norm))))
        sampled = torch.from_numpy(places.arrays.sampled)
        return weights.head(self._norm(x.index_select(0, sampled), weights.norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._model.config.rms_eps)


class TableAttention:
    """Attends by a native kernel over a paged cache (`model/kernels/native/abi.h` has the layout)."""

    def __init__(self, model: DecoderModel, n_blocks: int, kernels: binding.Kernels) -> None:
        config = model.config
        self._dtype = model.dtype
        self._kernels = kernels
        self._width = -(-config.head_dim // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
        lead = (config.n_layers, n_blocks, config.n_kv_heads)
        self._keys = torch.zeros(*lead, self._width // _PAIR, BLOCK_TOKENS, _PAIR, dtype=torch.bfloat16)
        shape = (*lead, self._width // _LANES, BLOCK_TOKENS // _PAIR, _LANES, _PAIR)
        self._values = torch.zeros(shape, dtype=torch.bfloat16)
        self._model = binding.Model(
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_window or 0,
        )

    def fill(self) -> None:
        self._keys.normal_()
        self._values.normal_()

    def attend(self, layer: int, places: TokenPlaces, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return (tokens, n_heads * head_dim), from rotated (tokens, heads, head_dim)."""
        self._write(layer, places.blocks, places.slots, keys, values)
        wide = queries.to(torch.float32).contiguous()
        out = torch.empty_like(wide)
        cache = binding.Cache(self._keys[layer].data_ptr(), self._values[layer].data_ptr(), self._keys[layer].numel())
        rows = places.arrays.rows_struct()
        status = self._kernels.attend(
            ctypes.byref(self._model),
            ctypes.byref(cache),
            ctypes.byref(rows),
            wide.data_ptr(),
            out.data_ptr(),
            pool(torch.get_num_threads()),
        )
        if status:
            raise MemoryError("the kernels found no memory for their workspace")
        return out.flatten(1).to(self._dtype)

    def _write(self, layer: int, blocks: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        missing = self._width - keys.shape[-1]
        if missing:
            keys, values = (functional.pad(one, (0, missing)) for one in (keys, values))
        narrow_keys, narrow_values = (one.to(torch.bfloat16) for one in (keys, values))
        self._keys[layer][blocks, :, :, slots] = narrow_keys.reshape(*keys.shape[:-1], -1, _PAIR)
        places = (blocks, slice(None), slice(None), slots // _PAIR, slice(None), slots % _PAIR)
        self._values[layer][places] = narrow_values.reshape(*values.shape[:-1], -1, _LANES)


def row_of(known: Sequence[int], start: int, n_tokens: int, block_ids: Sequence[int]) -> DecodeRow:
    """Return a row that computes `n_tokens` from `start`, and then samples."""
    return Row(
        rid=0,
        known=known,
        start=start,
        n_tokens=n_tokens,
        block_ids=block_ids,
        samples=True,
        n_prompt=len(known),
        sampling=SamplingParams(temperature=0.0),
        seed=0,
    )


def model_of(files: ModelFiles, seed: int) -> DecoderModel:
    """Load the model in the dtype that is best here without native matrix products. Raises `ModelSourceError`."""
    form = TorchFormat(resolve_dtype("auto", CPU), CPU)
    checkpoint, config = (RandomCheckpoint(seed), _TINY) if files.kind is ModelKind.FAKE else open_checkpoint(files)
    check_shapes(expected_shapes(config), checkpoint.shapes, files.path)
    weights = load_weights(checkpoint, config, form)
    rope = Rope(config, CPU, form.dtype, checkpoint.frequency_divisors())
    return DecoderModel(config, weights, rope, form.dtype)


def methods_of(model: DecoderModel, n_blocks: int) -> tuple[DecodeMethod, DecodeMethod, DecodeMethod]:
    """Create three methods: with the gather, with the kernel, without attention.

    Their caches have `n_blocks` blocks, which are filled. Raises `LoadError` without native kernels.
    """
    kernels = best_kernels()
    if kernels is None:
        raise LoadError("the native kernels, which are one side of this comparison, are not built here")
    methods = (
        GatherDecoder(model, n_blocks),
        LayerDecoder(model, TableAttention(model, n_blocks, kernels)),
        LayerDecoder(model, None),
    )
    for method in methods:
        method.fill()
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
