"""The weights of a decoder. `Product` is the form of a matrix in which it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

Product = TypeVar("Product")


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[Product]):
    """The weights of one layer. `qkv` has the rows of queries, keys and values; `gate_up` those of gates and ups."""

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
    """(vocab_size, hidden_size); None if its rows are read from the head."""
    layers: tuple[LayerWeights[Product], ...]
    norm: Tensor
    head: Product
