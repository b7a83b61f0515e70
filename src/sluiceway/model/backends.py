"""The interface between the runner and what computes: forward passes over a paged cache, in torch or native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sluiceway.engine.scheduler.plan import NO_TOKEN, Row
from sluiceway.model.batch import build_batch
from sluiceway.model.config import ModelConfig
from sluiceway.model.decoder import TorchDecoder
from sluiceway.model.kv import KVCache

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """For each sampled token, row by row: `largest` is the token with the largest logit, or `NO_TOKEN`.

    Of equal logits the first counts.
    """

    largest: IntArray
    logits: Tensor
    """Shape (requested tokens, vocab_size), float32, on the CPU. The caller may change it."""


class Backend(Protocol):
    """A model with its own cache, to which `compute` writes keys and values."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache. The system takes memory when a block is used for the first time."""
        ...

    def compute(self, rows: Sequence[Row], *, logits_of: Sequence[int]) -> ForwardOutput:
        """Compute one or more rows, which do not interact. `logits_of`: ascending indices of sampled tokens."""
        ...


class TorchBackend:
    """Implements `Backend` on any device, in any dtype."""

    def __init__(
        self, decoder: TorchDecoder, config: ModelConfig, n_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._config = config
        self._dtype = dtype
        self._device = device
        self._cache = KVCache(config, n_blocks, dtype, device)

    @property
    def cache_bytes(self) -> int:
        return self._cache.n_bytes

    def compute(self, rows: Sequence[Row], *, logits_of: Sequence[int]) -> ForwardOutput:
        with torch.inference_mode():
            batch = build_batch(rows, self._config, self._dtype, self._device)
            logits = self._decoder.forward(batch, self._cache)
            largest = largest_of(logits)
            wanted = logits[list(logits_of)].float().cpu()
        return ForwardOutput(largest, wanted)


def largest_of(logits: Tensor) -> IntArray:
    """The index of the largest value in each row of logits (rows, vocab_size); of equal values the first.

    NaN counts as minus infinity. A row without a value above minus infinity gives `NO_TOKEN`.
    """
    largest = logits.argmax(dim=-1)
    values = logits.gather(-1, largest[:, None])[:, 0]
    if bool((values > -torch.inf).all()):  # NaN would have been taken for the largest
        return largest.cpu().numpy()
    cleaned = torch.where(logits.isnan(), -torch.inf, logits)
    largest = cleaned.argmax(dim=-1)
    is_possible = cleaned.gather(-1, largest[:, None])[:, 0] > -torch.inf
    return torch.where(is_possible, largest, NO_TOKEN).cpu().numpy()
