"""A decoder on the CPU whose attention can be exchanged. Everything else of a step stays the same.

`GatherDecoder` is the product's decoder without native kernels. `LayerDecoder` computes the same layers, with the
attention as an argument: `TableAttention` is a native kernel that reads keys and values in place, through the block
table. `NoAttention` leaves attention out, which shows the cost of the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sluiceway.config import BLOCK_TOKENS
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.batch import build_batch
from sluiceway.model.config import ModelConfig
from sluiceway.model.kernels import binding
from sluiceway.model.kernels.decoder import StepArrays
from sluiceway.model.kernels.loader import pool
from sluiceway.model.kv import KVCache
from sluiceway.model.layers import rms_norm, swiglu
from sluiceway.model.linear import Linear
from sluiceway.model.llama import Decoder
from sluiceway.model.rope import Rope, rotate
from sluiceway.model.weights import DecoderWeights

CPU = torch.device("cpu")
_HEAD_MULTIPLE = 32
_PAIR = 2
_LANES = 16


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """The model that all methods share. `dtype` is that of its weights."""

    config: ModelConfig
    weights: DecoderWeights[Linear]
    rope: Rope
    dtype: torch.dtype


class DecodeMethod(Protocol):
    """Computes steps of the model, with its own cache."""

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Write the same keys and values (all tokens of the cache, n_kv_heads, head_dim) to every layer."""

    def step(self, rows: Sequence[Row]) -> Tensor:
        """Return the logits (rows that sample, vocab_size)."""


class GatherDecoder:
    """Implements `DecodeMethod` as the product does without native kernels."""

    def __init__(self, model: DecoderModel, n_blocks: int) -> None:
        self._model = model
        self._decoder = Decoder(model.config, model.weights, model.rope)
        self._cache = KVCache(model.config, n_blocks, model.dtype, CPU)

    def fill(self, keys: Tensor, values: Tensor) -> None:
        n_tokens, n_heads, _ = keys.shape
        runs = torch.arange(n_tokens // BLOCK_TOKENS)[:, None, None] * n_heads + torch.arange(n_heads)
        slots = (runs * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)[:, None]).flatten()
        for layer in range(self._model.config.n_layers):
            self._cache.write(layer, slots, keys, values)

    def step(self, rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            return self._decoder.forward(build_batch(rows, self._model.config, self._model.dtype, CPU), self._cache)


class Attention(Protocol):
    """The attention of a layer, between its products with `qkv` and `out`."""

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """See `DecodeMethod.fill`."""

    def begin(self, places: TokenPlaces) -> None:
        """Prepare for the next step."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return (tokens, n_heads * head_dim), from rotated (tokens, heads, head_dim)."""


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
    """Implements `DecodeMethod` with a given attention."""

    def __init__(self, model: DecoderModel, attention: Attention) -> None:
        self._model = model
        self._attention = attention

    def fill(self, keys: Tensor, values: Tensor) -> None:
        self._attention.fill(keys, values)

    def step(self, rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            places = TokenPlaces.of(rows)
            self._attention.begin(places)
            return self._forward(places)

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
            x = x + layer.out(self._attention.attend(index, queries, keys, heads[:, n_rotated:]))
            x = x + layer.down(swiglu(layer.gate_up(self._norm(x, layer.mlp_norm))))
        sampled = torch.from_numpy(places.arrays.sampled)
        return weights.head(self._norm(x.index_select(0, sampled), weights.norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._model.config.rms_eps)


class NoAttention:
    """Implements `Attention` without computing it: it returns the queries."""

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Do nothing: there is no cache."""

    def begin(self, places: TokenPlaces) -> None:
        """Do nothing: all steps are alike."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return queries.flatten(1)


class TableAttention:
    """Implements `Attention` by a native kernel over a paged cache (`model/kernels/native/abi.h` has the layout)."""

    def __init__(self, model: DecoderModel, n_blocks: int, kernels: binding.Kernels) -> None:
        config = model.config
        self._n_layers, self._dtype = config.n_layers, model.dtype
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
        self._places: TokenPlaces

    def fill(self, keys: Tensor, values: Tensor) -> None:
        tokens = torch.arange(len(keys))
        blocks, slots = tokens // BLOCK_TOKENS, tokens % BLOCK_TOKENS
        for layer in range(self._n_layers):
            self._write(layer, blocks, slots, keys, values)

    def begin(self, places: TokenPlaces) -> None:
        self._places = places

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        places = self._places
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
