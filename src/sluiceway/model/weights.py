"""What a decoder is made of, with products in whatever form computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

Product = TypeVar("Product")


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[Product]):
    """`qkv` and `gate_up` are one matrix each: rows of queries, then keys, then values; of gate, then up."""

    attention_norm: Tensor
    qkv: Product
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[Product]):
    embedding: Tensor | None
    """(vocab_size, hidden_size); None where its rows are taken out of the head."""
    layers: tuple[LayerWeights[Product], ...]
    norm: Tensor
    head: Product
