"""Logprobs equal a log-softmax in float64, in an order that depends on the values only."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from sluiceway.model import logprobs as module
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.logprobs import logprobs_of
from sluiceway.types import LEAST_LOGPROB, Logprobs

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(params=["native", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with the kernels and without them."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "best_kernels", lambda: None)
    elif best_kernels() is None:
        pytest.skip("there are no native kernels")


SIZES = [1, 2, 255, 256, 257, 1001, 49_152]


def logits(n_rows: int, vocab_size: int, scale: float = 3.0, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, scale, (n_rows, vocab_size)).astype(np.float32)


def expected(row: npt.NDArray[np.float32], token_id: int, n_top: int) -> Logprobs:
    """The logprobs of all tokens, sorted, in float64."""
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    order = sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))[:n_top]
    return Logprobs(float(exact[token_id]), tuple(order), tuple(float(exact[token_id]) for token_id in order))


def assert_close(found: Logprobs, wanted: Logprobs) -> None:
    assert found.top_ids == wanted.top_ids
    assert (found.logprob, *found.top_logprobs) == pytest.approx((wanted.logprob, *wanted.top_logprobs), abs=5e-6)


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("n_top", [0, 1, 5, 20])
def test_numbers_are_those_of_an_exact_log_softmax(vocab_size: int, n_top: int) -> None:
    """The tokens are anywhere in the vocabulary. If it has fewer tokens than requested, all are in the result."""
    values = logits(3, vocab_size)
    tokens = [0, vocab_size // 2, vocab_size - 1]
    for row, token_id, found in zip(values, tokens, logprobs_of(values, tokens, [n_top] * 3), strict=True):
        assert_close(found, expected(row, token_id, n_top))


@pytest.mark.parametrize("decimals", [0, 1])
def test_lower_ids_come_first_when_tokens_are_equally_likely(decimals: int) -> None:
    """They are also chosen first if the list has no room for all."""
    values = np.round(logits(4, 2_000), decimals)
    for row, found in zip(values, logprobs_of(values, [7] * 4, [20] * 4), strict=True):
        assert_close(found, expected(row, 7, 20))
    (flat,) = logprobs_of(np.zeros((1, 2_000), np.float32), [1_999], [5])
    assert flat.top_ids == (0, 1, 2, 3, 4) and flat.logprob == pytest.approx(-math.log(2_000))


def test_each_row_has_as_many_as_it_wants() -> None:
    """A token has the same logprob in the list and alone. The result does not depend on other rows."""
    values = logits(4, 1_001)
    tokens = [int(row.argmax()) for row in values]
    found = logprobs_of(values, tokens, [0, 1, 7, 20])
    assert [len(one.top_ids) for one in found] == [0, 1, 7, 20]
    assert [one.top_logprobs[0] == one.logprob for one in found[1:]] == [True] * 3
    alone = [logprobs_of(values[n : n + 1], [tokens[n]], [n_top])[0] for n, n_top in enumerate([0, 1, 7, 20])]
    assert found == alone


def test_logits_stay_as_they_are() -> None:
    """The caller may use them again."""
    values = logits(2, 300)
    before = values.copy()
    logprobs_of(values, [0, 1], [5, 5])
    assert (values == before).all()


def test_numbers_are_plain_and_finite_when_tokens_are_impossible() -> None:
    """JSON cannot express minus infinity."""
    values = np.full((1, 600), -np.inf, np.float32)
    values[0, 3] = 2.0
    (found,) = logprobs_of(values, [4], [3])
    assert found == Logprobs(LEAST_LOGPROB, (3, 0, 1), (0.0, LEAST_LOGPROB, LEAST_LOGPROB))
    assert {type(number) for number in (found.logprob, *found.top_logprobs)} == {float}
    assert {type(token_id) for token_id in found.top_ids} == {int}


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_odd", [1, 3, 600])
def test_numbers_are_finite_and_sorted_when_logits_are_odd(odd: float, n_odd: int) -> None:
    """The result is valid even if the model gives NaN or infinity."""
    values = logits(1, 600)
    values[0, :n_odd] = odd
    (found,) = logprobs_of(values, [0], [10])
    numbers = (found.logprob, *found.top_logprobs)
    assert all(LEAST_LOGPROB <= number <= 0.0 for number in numbers)
    assert len(set(found.top_ids)) == 10 and list(found.top_logprobs) == sorted(found.top_logprobs, reverse=True)


def test_numbers_are_finite_when_logits_are_odd_in_every_way() -> None:
    """One row has all kinds of odd logits."""
    values = logits(1, 600)
    values[0, :3] = np.nan, np.inf, -np.inf
    (found,) = logprobs_of(values, [0], [3])
    assert found == Logprobs(LEAST_LOGPROB, (1, *found.top_ids[1:]), (0.0, LEAST_LOGPROB, LEAST_LOGPROB))


def test_all_are_equally_likely_when_all_are_impossible() -> None:
    """The lowest ids come first."""
    (found,) = logprobs_of(np.full((1, 600), -np.inf, np.float32), [7], [2])
    assert found.top_ids == (0, 1)
    assert (found.logprob, *found.top_logprobs) == pytest.approx([-math.log(600)] * 3)


def test_large_logits_do_not_overflow() -> None:
    """Only differences between logits count."""
    values = logits(1, 600) + np.float32(3e4)
    (found,) = logprobs_of(values, [0], [5])
    assert_close(found, expected(values[0], 0, 5))


def test_no_rows_have_no_logprobs() -> None:
    """A step may have no rows."""
    assert logprobs_of(logits(0, 16), [], []) == []
