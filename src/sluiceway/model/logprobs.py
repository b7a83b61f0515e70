"""The log-probabilities that go with tokens: one pass over the logits of each row, and one look for the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluiceway.model.penalties import FloatRow, FloatRows
from sluiceway.types import LEAST_LOGPROB, Logprobs, TokenId

_BLOCK = 256
"""The k-th largest of the largest of blocks is a bound that the k largest of all reach, and few others do."""


def logprobs_of(logits: FloatRows, token_ids: Sequence[TokenId], n_top: Sequence[int]) -> list[Logprobs]:
    """For each row of logits (rows, vocab_size), as the model gave them, and the token that came of it.

    A row's result depends on nothing but the row. One with NaN or infinities is taken as far as it makes sense.
    """
    return [_of_row(row, *wanted) for row, *wanted in zip(logits, token_ids, n_top, strict=True)]


def _of_row(logits: FloatRow, token_id: TokenId, n_top: int) -> Logprobs:
    norm = _log_sum_exp(logits)
    if not np.isfinite(norm):
        largest = float(np.finfo(np.float32).max)
        logits = np.nan_to_num(logits, nan=-largest, posinf=largest, neginf=-largest)
        norm = _log_sum_exp(logits)
    top_ids = _likeliest(logits, n_top)
    values = np.maximum(logits[[token_id, *top_ids]] - norm, np.float32(LEAST_LOGPROB)).tolist()
    return Logprobs(values[0], tuple(top_ids), tuple(values[1:]))


def _log_sum_exp(logits: FloatRow) -> np.float32:
    largest = logits.max()
    with np.errstate(invalid="ignore", over="ignore"):
        return np.float32(largest + np.log(np.exp(logits - largest).sum()))


def _likeliest(logits: FloatRow, n: int) -> list[TokenId]:
    """The ids of the n largest, the largest first; of equal ones the lowest first, and the lowest are taken."""
    if n == 0:
        return []
    bounds = np.maximum.reduceat(logits, np.arange(0, logits.size, _BLOCK))
    if bounds.size < n:
        bounds = logits
    n = min(n, bounds.size)
    candidates = np.flatnonzero(logits >= np.partition(bounds, -n)[-n])
    order = np.argsort(-logits[candidates], kind="stable")
    ids: list[TokenId] = candidates[order[:n]].tolist()
    return ids
