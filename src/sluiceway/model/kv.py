"""The paged cache of keys and values."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS
from sluiceway.model.config import ModelConfig


class KVCache:
    """Holds keys and values, each (n_layers, n_blocks, n_kv_heads, BLOCK_TOKENS, head_dim).

    Heads come before tokens, so that what one head reads of a block is contiguous. `slots` and `runs` are places in a
    layer: a slot is one token of one head, a run is one block of one head. Memory is taken when a block is used.
    """

    def __init__(self, config: ModelConfig, n_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.n_layers, n_blocks, config.n_kv_heads, BLOCK_TOKENS, config.head_dim)
        keys, values = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
        self._key_slots = keys.view(config.n_layers, -1, config.head_dim)
        self._value_slots = values.view(config.n_layers, -1, config.head_dim)
        self._key_runs = keys.view(config.n_layers, -1, BLOCK_TOKENS * config.head_dim)
        self._value_runs = values.view(config.n_layers, -1, BLOCK_TOKENS * config.head_dim)
        self.n_bytes = 2 * keys.nbytes

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (tokens, n_kv_heads, head_dim). `slots` has a place for each head of each token."""
        head_dim = keys.shape[-1]
        self._key_slots[layer].index_copy_(0, slots, keys.reshape(-1, head_dim))
        self._value_slots[layer].index_copy_(0, slots, values.reshape(-1, head_dim))

    def clear(self, runs: Tensor) -> None:
        """Write zeros to these runs, in all layers.

        Attention multiplies the values of masked tokens by zero, and NaN times zero is NaN. Without this, a sequence
        with NaN would break the next owner of its blocks.
        """
        if len(runs):
            self._key_runs.index_fill_(1, runs, 0)
            self._value_runs.index_fill_(1, runs, 0)

    def gather(self, layer: int, runs: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the keys and values of these runs, each (runs, BLOCK_TOKENS * head_dim)."""
        return self._key_runs[layer].index_select(0, runs), self._value_runs[layer].index_select(0, runs)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros. On the CPU the system gives pages of zeros when they are first used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)
