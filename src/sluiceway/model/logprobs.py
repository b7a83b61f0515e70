"""Computes logprobs: one pass over the logits of each row, and a search for the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluiceway.model.kernels.loader import best_kernels, pool
from sluiceway.model.kernels.logprobs import logprobs_natively
from sluiceway.model.penalties import FloatRow, FloatRows
from sluiceway.types import LEAST_LOGPROB, Logprobs, TokenId

_LARGEST = float(np.finfo(np.float32).max)
_LEAST = np.float32(LEAST_LOGPROB)

_BLOCK = 256
"""The size of a block. The k-th largest of the maxima of blocks is a lower bound of the k largest values."""


def logprobs_of(logits: FloatRows, token_ids: Sequence[TokenId], n_top: Sequence[int]) -> list[Logprobs]:
    """Compute the logprobs of one token of each row of unchanged logits (rows, vocab_size), and of the likeliest.

    The result of a row depends on this row alone. NaN counts as impossible, infinity as the largest number.
    """
    kernels = best_kernels()
    if kernels is not None and token_ids:
        return logprobs_natively(kernels, pool(torch.get_num_threads()), logits, token_ids, n_top)
    return [_of_row(row, *wanted) for row, *wanted in zip(logits, token_ids, n_top, strict=True)]


def _of_row(logits: FloatRow, token_id: TokenId, n_top: int) -> Logprobs:
    largest = logits.max()
    if not np.isfinite(largest):
        logits = np.nan_to_num(logits, nan=-np.inf, posinf=_LARGEST, neginf=-np.inf)
        largest = logits.max()
    if np.isneginf(largest):  # nothing is possible: all are equally so
        logits, largest = np.zeros_like(logits), np.float32(0)
    top_ids = _likeliest(logits, n_top)
    # Not from their log-sum-exp: where logits are large, that has lost its last digits.
    differences = logits[[token_id, *top_ids]] - largest
    values = np.maximum(differences - _log_sum(logits, largest), _LEAST).tolist()
    return Logprobs(values[0], tuple(top_ids), tuple(values[1:]))


def _log_sum(logits: FloatRow, largest: np.float32) -> np.float32:
    """The logarithm of the sum of all weights; the likeliest token has the weight 1."""
    weights = logits - largest
    return np.float32(np.log(np.exp(weights, out=weights).sum()))


def _likeliest(logits: FloatRow, n: int) -> list[TokenId]:
    """The ids of the n largest logits, the largest first; of equal ones, the lowest ids, the lowest first."""
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
