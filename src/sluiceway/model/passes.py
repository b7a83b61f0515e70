"""The seam between the runner and what computes: forward passes over a paged cache, in torch or in native code."""

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
from sluiceway.model.kv import KVCache
from sluiceway.model.llama import Decoder

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of each token that is sampled, row by row: `largest` is the first of the largest logits, or `NO_TOKEN`."""

    largest: IntArray
    logits: Tensor
    """(those that were asked for, vocab_size) on the CPU, float32, the caller's to change."""


class Pass(Protocol):
    """A model with a cache of its own, which `compute` writes keys and values into."""

    @property
    def cache_bytes(self) -> int:
        """Of the whole cache; memory is taken as blocks are used for the first time."""
        ...

    def compute(self, rows: Sequence[Row], *, logits_of: Sequence[int]) -> Outcome:
        """At least one row. Rows do not interact. `logits_of` are numbers of sampled tokens, in rising order."""
        ...


class TorchPass:
    """Implements `Pass` on any device, in any dtype."""

    def __init__(
        self, decoder: Decoder, config: ModelConfig, n_blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._config = config
        self._dtype = dtype
        self._device = device
        self._cache = KVCache(config, n_blocks, dtype, device)

    @property
    def cache_bytes(self) -> int:
        return self._cache.n_bytes

    def compute(self, rows: Sequence[Row], *, logits_of: Sequence[int]) -> Outcome:
        with torch.inference_mode():
            batch = build_batch(rows, self._config, self._dtype, self._device)
            logits = self._decoder.forward(batch, self._cache)
            largest = largest_of(logits)
            wanted = logits[list(logits_of)].float().cpu()
        return Outcome(largest, wanted)


def largest_of(logits: Tensor) -> IntArray:
    """For each row of logits (rows, vocab_size) the first of the largest; NaN counts as minus infinity.

    A row that has nothing above minus infinity gives `NO_TOKEN`.
    """
    largest = logits.argmax(dim=-1)
    values = logits.gather(-1, largest[:, None])[:, 0]
    if bool((values > -torch.inf).all()):  # NaN would have been taken for the largest
        return largest.cpu().numpy()
    cleaned = torch.where(logits.isnan(), -torch.inf, logits)
    largest = cleaned.argmax(dim=-1)
    is_possible = cleaned.gather(-1, largest[:, None])[:, 0] > -torch.inf
    return torch.where(is_possible, largest, NO_TOKEN).cpu().numpy()
