"""Computes the logprobs of many tokens in one native call, each with those of the likeliest in its place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluiceway.model.kernels.binding import Kernels, LogprobsRow, Pool
from sluiceway.types import LEAST_LOGPROB, Logprobs, TokenId


def logprobs_natively(
    kernels: Kernels,
    pool: Pool,
    logits: npt.NDArray[np.float32],
    token_ids: Sequence[TokenId],
    n_top: Sequence[int],
) -> list[Logprobs]:
    """Compute the logprob of one token of each row of logits (rows, vocab_size), and of the `n_top` likeliest.

    The logits must be contiguous. Raises `MemoryError`.
    """
    n_rows, vocab_size = logits.shape
    counts = [min(n, vocab_size) for n in n_top]
    values = np.empty((n_rows, max(counts) + 1), dtype=np.float32)
    top_ids = np.empty((n_rows, max(counts)), dtype=np.int32)
    wanted = (LogprobsRow * n_rows)(
        *(
            LogprobsRow(*addresses, token_id, n)
            for *addresses, token_id, n in zip(
                _row_addresses(logits),
                _row_addresses(values),
                _row_addresses(top_ids),
                token_ids,
                counts,
                strict=True,
            )
        )
    )
    if kernels.logprobs(ctypes.cast(wanted, ctypes.POINTER(LogprobsRow)), n_rows, vocab_size, pool):
        raise MemoryError("the kernels found no memory for logprobs")
    np.maximum(values, np.float32(LEAST_LOGPROB), out=values)
    rows = zip(values.tolist(), top_ids.tolist(), counts, strict=True)
    return [Logprobs(own, tuple(ids[:n]), tuple(top[:n])) for (own, *top), ids, n in rows]


def _row_addresses(table: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> list[int]:
    first, step = table.ctypes.data, table.strides[0]
    return [first + step * row for row in range(len(table))]
