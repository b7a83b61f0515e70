"""Native logprobs are the same with every kernel set, and with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from sluiceway.model.kernels.logprobs import logprobs_natively
from sluiceway.types import LEAST_LOGPROB
from support.native import SETS, kernel_set, pools, random_floats

SIZES = [1, 2, 17, 255, 256, 257, 1001, 20_003]


@pytest.mark.parametrize("n_top", [0, 1, 5, 20, 300])
@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("name", SETS)
def test_numbers_are_those_of_a_log_softmax(name: str, vocab_size: int, n_top: int) -> None:
    """The softmax is in float64. Many or few logits are equal; there is one thread, or more threads than rows."""
    kernels = kernel_set(name)
    for logits in (random_floats(2, vocab_size, scale=3), np.round(random_floats(2, vocab_size, scale=3))):
        exact = logits.astype(np.float64)
        exact -= np.logaddexp.reduce(exact, axis=1, keepdims=True)
        token_ids = [vocab_size - 1, vocab_size // 2]
        for pool in pools():
            found = logprobs_natively(kernels, pool, logits, token_ids, [n_top] * 2)
            for row, values, token_id, one in zip(exact, logits, token_ids, found, strict=True):
                order = np.lexsort((np.arange(vocab_size), -values))[:n_top].tolist()
                assert one.top_ids == tuple(order)
                assert (one.logprob, *one.top_logprobs) == pytest.approx(row[[token_id, *order]].tolist(), abs=5e-6)


@pytest.mark.parametrize("name", SETS)
def test_logprobs_of_a_row_are_the_same_in_any_batch(name: str) -> None:
    """Its logprobs are equal to the last bit, alone and in a batch, for any number of likeliest tokens."""
    kernels, logits = kernel_set(name), random_floats(7, 3_000, scale=4)
    token_ids, n_top = list(range(7)), [0, 20, 1, 0, 5, 2, 11]
    together = [logprobs_natively(kernels, pool, logits, token_ids, n_top) for pool in pools()]
    alone = [
        logprobs_natively(kernels, pools()[0], logits[row : row + 1], [row], [n_top[row]])[0]
        for row in range(len(logits))
    ]
    assert together == [alone, alone]
    assert [len(one.top_ids) for one in alone] == n_top


@pytest.mark.parametrize("name", SETS)
def test_odd_logits_are_taken_as_far_as_they_make_sense(name: str) -> None:
    """NaN counts as impossible, infinity as the largest number. If no token is possible, all are equally likely."""
    kernels, logits = kernel_set(name), random_floats(3, 300)
    logits[0, :3] = np.nan, np.inf, -np.inf
    logits[1] = np.nan
    logits[2, 1:] = -np.inf
    odd, nothing, one = logprobs_natively(kernels, pools()[0], logits, [0, 5, 1], [2, 2, 2])
    assert (odd.logprob, odd.top_ids[0], odd.top_logprobs) == (LEAST_LOGPROB, 1, (0.0, LEAST_LOGPROB))
    assert nothing.top_ids == (0, 1) and nothing.top_logprobs == pytest.approx([-np.log(300)] * 2)
    assert (one.logprob, one.top_ids, one.top_logprobs) == (LEAST_LOGPROB, (0, 1), (0.0, LEAST_LOGPROB))


@pytest.mark.parametrize("name", SETS)
def test_logits_are_only_read(name: str) -> None:
    """The caller may use them again."""
    logits = random_floats(2, 500)
    before = logits.copy()
    logprobs_natively(kernel_set(name), pools()[1], logits, [1, 2], [3, 3])
    assert (logits == before).all()
