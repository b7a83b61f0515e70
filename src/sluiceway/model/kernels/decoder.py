"""A decoder that computes whole steps in native code: one call a step."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sluiceway.config import BLOCK_TOKENS
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.backends import ForwardOutput
from sluiceway.model.batch import sampled_tokens
from sluiceway.model.config import ModelConfig
from sluiceway.model.kernels import binding
from sluiceway.model.kernels.loader import pool
from sluiceway.model.kernels.packing import PackedProduct, address
from sluiceway.model.rope import Rope
from sluiceway.model.weights import DecoderWeights, LayerWeights

_HEAD_MULTIPLE = 32
_MAX_HEAD_DIM = 256

Int32Array = npt.NDArray[np.int32]


def is_supported(config: ModelConfig) -> bool:
    """The largest head: the kernels keep the sums of a head on the stack."""
    return config.head_dim <= _MAX_HEAD_DIM


class NativeCache:
    """The paged cache in the layout of the kernels: see `native/abi.h`. Memory is taken when a block is used."""

    def __init__(self, config: ModelConfig, n_blocks: int) -> None:
        width = -(-config.head_dim // _HEAD_MULTIPLE) * _HEAD_MULTIPLE
        shape = (config.n_layers, n_blocks, config.n_kv_heads, BLOCK_TOKENS * width)
        self._keys, self._values = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
        self.n_bytes = self._keys.nbytes + self._values.nbytes
        self.struct = binding.Cache(self._keys.ctypes.data, self._values.ctypes.data, self._keys[0].size)

    def fill(self, number: float) -> None:
        """Write this number everywhere, also into the padding of heads. For tests."""
        (bf16,) = (np.array([number], np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self._keys[:] = self._values[:] = bf16


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The rows of a step as int32 arrays, which the kernels read."""

    first: Int32Array
    start: Int32Array
    first_block: Int32Array
    blocks: Int32Array
    tokens: Int32Array
    sampled: Int32Array

    @classmethod
    def of(cls, rows: Sequence[Row]) -> StepArrays:
        """Build the arrays. The time depends on the tokens and blocks of the step, not on the lengths of sequences."""
        counts = np.array([row.n_tokens for row in rows], dtype=np.int32)
        start = np.array([row.start for row in rows], dtype=np.int32)
        n_blocks = -(-(start + counts) // BLOCK_TOKENS)
        first = _running_sums(counts)
        blocks = array("i")
        tokens: list[int] = []
        for row, n in zip(rows, n_blocks.tolist(), strict=True):
            blocks.extend(row.block_ids[:n])
            tokens += row.token_ids
        return cls(
            first,
            start,
            _running_sums(n_blocks),
            np.frombuffer(blocks, dtype=np.int32),
            np.array(tokens, dtype=np.int32),
            sampled_tokens(first[1:], rows),
        )

    def rows_struct(self) -> binding.Rows:
        """The struct that points into these arrays. It is valid as long as they are."""
        places = (array.ctypes.data for array in (self.first, self.start, self.first_block, self.blocks))
        return binding.Rows(*places, len(self.start))


class NativeDecoder:
    """Holds weights and a workspace. It computes one pass at a time."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights[PackedProduct],
        rope: Rope,
        kernels: binding.Kernels,
    ) -> None:
        self._config = config
        self._weights = weights
        self._rope = rope
        self._layers = (binding.Layer * config.n_layers)(*(_layer_struct(layer) for layer in weights.layers))
        self._model = model_struct(config, weights, rope, self._layers)
        self._kernels = kernels
        self._workspace = kernels.open()
        weakref.finalize(self, kernels.close, self._workspace)

    def forward(self, rows: Sequence[Row], cache: NativeCache, logits_of: Sequence[int]) -> ForwardOutput:
        """Compute one pass, and write the keys and values of the rows into the cache. Raises `MemoryError`."""
        arrays = StepArrays.of(rows)
        largest = np.empty(len(arrays.sampled), dtype=np.int32)
        places = np.full(len(largest), -1, dtype=np.int32)
        places[list(logits_of)] = np.arange(len(logits_of))
        logits = torch.empty(len(logits_of), self._config.vocab_size)
        step = binding.Step(
            arrays.rows_struct(),
            cache.struct,
            arrays.tokens.ctypes.data,
            arrays.sampled.ctypes.data,
            places.ctypes.data,
            address(logits),
            largest.ctypes.data,
            len(largest),
        )
        if self._run(step):
            raise MemoryError("the kernels found no memory for their workspace")
        return ForwardOutput(largest, logits)

    def _run(self, step: binding.Step) -> int:
        status: int = self._kernels.forward(self._workspace, self._model, step, pool(torch.get_num_threads()))
        return status


class NativeBackend:
    """Implements `Backend` on the CPU, in bf16 or int8."""

    def __init__(self, decoder: NativeDecoder, config: ModelConfig, n_blocks: int) -> None:
        self._decoder = decoder
        self.cache = NativeCache(config, n_blocks)

    @property
    def cache_bytes(self) -> int:
        return self.cache.n_bytes

    def compute(self, rows: Sequence[Row], *, logits_of: Sequence[int]) -> ForwardOutput:
        return self._decoder.forward(rows, self.cache, logits_of)


def _running_sums(counts: Int32Array) -> Int32Array:
    sums = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=sums[1:])
    return sums


def _layer_struct(layer: LayerWeights[PackedProduct]) -> binding.Layer:
    return binding.Layer(
        address(layer.attention_norm),
        layer.qkv.struct(),
        address(layer.q_norm),
        address(layer.k_norm),
        layer.out.struct(),
        address(layer.mlp_norm),
        layer.gate_up.struct(),
        layer.down.struct(),
    )


def model_struct(
    config: ModelConfig,
    weights: DecoderWeights[PackedProduct],
    rope: Rope,
    layers: ctypes.Array[binding.Layer],
) -> binding.Model:
    return binding.Model(
        layers,
        address(weights.norm),
        address(weights.embedding),
        weights.head.struct(),
        address(rope.frequencies),
        rope.magnitude,
        config.rms_eps,
        config.n_layers,
        config.hidden_size,
        config.intermediate_size,
        config.n_heads,
        config.n_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.sliding_window or 0,
    )
