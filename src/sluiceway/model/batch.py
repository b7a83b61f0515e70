"""The rows of a plan as the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.attention import AttentionPlan, IntArray, Span, plan_attention
from sluiceway.model.config import ModelConfig

IntT = TypeVar("IntT", bound=np.integer)


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens of a step, row after row: the input of a forward pass, without weights and cache."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    """(tokens * n_kv_heads): the slots for the keys and values of each token; see `KVCache`."""
    attention: AttentionPlan
    fresh_runs: Tensor
    """Runs that the step begins and does not fill. What is in them is cleared first: see `KVCache.clear`."""
    sampled: Tensor
    """The tokens whose logits are wanted: the last ones of each row, as many as it samples."""


def build_batch(rows: Sequence[Row], config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Batch:
    """Build the batch of a step, in a time that depends on its tokens and blocks, not on the lengths of sequences."""
    counts = np.array([row.n_tokens for row in rows])
    firsts = np.cumsum(counts) - counts
    starts = np.array([row.start for row in rows])
    positions = np.repeat(starts - firsts, counts) + np.arange(counts.sum())
    spans = [Span(int(first), row.start, row.n_tokens, row.block_ids) for first, row in zip(firsts, rows, strict=True)]
    return Batch(
        token_ids=_on(device, np.concatenate([row.token_ids for row in rows])),
        positions=_on(device, positions),
        slots=_on(device, _slots(rows, positions, config.n_kv_heads)),
        attention=plan_attention(spans, config, dtype, device),
        fresh_runs=_on(device, _fresh_runs(rows, config.n_kv_heads)),
        sampled=_on(device, sampled_tokens(firsts + counts, rows)),
    )


def sampled_tokens(ends: npt.NDArray[IntT], rows: Sequence[Row]) -> npt.NDArray[IntT]:
    """The tokens of the flat batch whose logits are sampled. `ends[r]` is the index after the last token of row r."""
    counts = np.array([row.n_samples for row in rows])
    sums = np.cumsum(counts)
    return (np.repeat(ends - sums, counts) + np.arange(sums[-1])).astype(ends.dtype)


def _slots(rows: Sequence[Row], positions: IntArray, n_kv_heads: int) -> IntArray:
    blocks = []
    for row in rows:
        first, last = row.start // BLOCK_TOKENS, (row.start + row.n_tokens - 1) // BLOCK_TOKENS
        held = np.array(row.block_ids[first : last + 1])
        blocks.append(held[np.arange(row.start, row.start + row.n_tokens) // BLOCK_TOKENS - first])
    runs = np.concatenate(blocks)[:, None] * n_kv_heads + np.arange(n_kv_heads)
    return (runs * BLOCK_TOKENS + positions[:, None] % BLOCK_TOKENS).reshape(-1)


def _fresh_runs(rows: Sequence[Row], n_kv_heads: int) -> IntArray:
    fresh = []
    for row in rows:
        end = row.start + row.n_tokens
        last = (end - 1) // BLOCK_TOKENS
        if last * BLOCK_TOKENS >= row.start and end % BLOCK_TOKENS:
            fresh.append(row.block_ids[last])
    return (np.array(fresh, dtype=np.int64)[:, None] * n_kv_heads + np.arange(n_kv_heads)).reshape(-1)


def _on(device: torch.device, values: IntArray) -> Tensor:
    return torch.from_numpy(values).to(device)
