"""The interface of weight files of any format, and the names and shapes of the tensors that a decoder needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from sluiceway.errors import ModelSourceError
from sluiceway.model.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


class Checkpoint(Protocol):
    """Tensors by the names that Hugging Face gives them in the llama family."""

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    def source_bytes(self, name: str) -> int:
        """The size of the tensor in its file."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out`, which is contiguous and has the shape of the tensor, and convert to its dtype."""
        ...

    def mapped(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """The tensor in its mapped file, without a copy; None if its dtype is another one. Do not write to it."""
        ...

    def frequency_divisors(self) -> Tensor | None:
        """A table (head_dim / 2) that divides the rotary frequencies, if the file has one."""
        ...


def layer_name(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}"


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of every tensor of the model; (outputs, inputs) for a linear layer."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size), NORM: (config.hidden_size,)}
    if not config.is_tied:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.n_layers):
        shapes |= {layer_name(layer, part): shape for part, shape in _layer_shapes(config)}
    return shapes


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.has_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    for part, n_outputs, n_inputs, has_bias in (
        ("self_attn.q_proj", queries, hidden, config.has_qkv_bias),
        ("self_attn.k_proj", keys, hidden, config.has_qkv_bias),
        ("self_attn.v_proj", keys, hidden, config.has_qkv_bias),
        ("self_attn.o_proj", hidden, queries, config.has_out_bias),
        ("mlp.gate_proj", inner, hidden, config.has_mlp_bias),
        ("mlp.up_proj", inner, hidden, config.has_mlp_bias),
        ("mlp.down_proj", hidden, inner, config.has_mlp_bias),
    ):
        yield f"{part}.weight", (n_outputs, n_inputs)
        if has_bias:
            yield f"{part}.bias", (n_outputs,)


def check_shapes(expected: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> None:
    """Raise `ModelSourceError` for the first tensor that is missing, has a wrong shape, or would not be used."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelSourceError(f"{where}: has no tensor {name!r}")
        if found[name] != shape:
            raise ModelSourceError(f"{where}: tensor {name!r} has shape {found[name]}, the model needs {shape}")
    for name in found:
        if name not in expected and not _is_redundant(name):
            raise ModelSourceError(f"{where}: has a tensor {name!r} that the model has no use for")


def _is_redundant(name: str) -> bool:
    """True for a tensor that repeats known numbers: a tied head, or the rotary frequencies of old files."""
    return name == HEAD or name.endswith("rotary_emb.inv_freq")
