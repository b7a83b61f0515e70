"""Samples the tokens of many rows in one native call, each row by its own settings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluiceway.model.kernels.binding import Kernels, Pool, SamplingRow
from sluiceway.types import SamplingParams


def sample_natively(
    kernels: Kernels,
    pool: Pool,
    logits: Sequence[npt.NDArray[np.float32]],
    settings: Sequence[SamplingParams],
    uniforms: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]:
    """Sample a token for each row from its logits (vocab_size), which are contiguous, by its number in [0, 1).

    The token is -1 (`scheduler.plan.NO_TOKEN`) if none is possible. Raises `MemoryError`.
    """
    n_rows, vocab_size = len(logits), logits[0].size
    rows = (SamplingRow * n_rows)(
        *(
            SamplingRow(row.ctypes.data, u, sampling.top_p, sampling.temperature, sampling.min_p, sampling.top_k)
            for row, u, sampling in zip(logits, uniforms.tolist(), settings, strict=True)
        )
    )
    tokens = np.empty(n_rows, dtype=np.int32)
    if kernels.sample(ctypes.cast(rows, ctypes.POINTER(SamplingRow)), n_rows, vocab_size, tokens.ctypes.data, pool):
        raise MemoryError("the kernels found no memory for sampling")
    return tokens
