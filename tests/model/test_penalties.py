"""Token counts against a plain recount."""

from __future__ import annotations

import numpy as np
import pytest

from sluiceway.model.penalties import PenaltyTable, TokenCounts, has_penalties
from sluiceway.types import SamplingParams

SAMPLING = SamplingParams(repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.125)


def expected(logits: np.ndarray, known: list[int], n_prompt: int) -> np.ndarray:
    """By the definitions, token by token."""
    out = logits.astype(np.float64)
    for token in set(known):
        out[token] = out[token] / 1.5 if out[token] > 0 else out[token] * 1.5
        n_generated = known[n_prompt:].count(token)
        out[token] -= 0.125 * n_generated + 0.25 * (n_generated > 0)
    return out


@pytest.mark.parametrize("steps", [[200], [1, 2, 50, 51, 200], list(range(1, 201))])
def test_logits_equal_a_recount_however_the_sequence_grew(steps: list[int]) -> None:
    """More distinct tokens than the first array holds; prompt and answer overlap."""
    rng = np.random.default_rng(1)
    known = rng.integers(0, 150, 200).tolist()
    logits = rng.normal(0, 3, 150).astype(np.float32)
    counts = TokenCounts()
    for n_known in steps:
        counts.advance(known, n_known, 60)
    result = logits.copy()
    counts.apply(result, SAMPLING)
    np.testing.assert_allclose(result, expected(logits, known, 60), rtol=1e-5, atol=1e-5)


def test_a_banned_logit_stays_banned() -> None:
    """Minus infinity times a penalty is minus infinity."""
    counts = TokenCounts()
    counts.advance([0], 1, 0)
    logits = np.array([-np.inf, 1.0], dtype=np.float32)
    counts.apply(logits, SAMPLING)
    assert logits.tolist() == [-np.inf, 1.0]


def test_a_known_sequence_is_only_advanced() -> None:
    """The table reads the new token and no other."""

    class Watched(list[int]):
        n_read = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            self.n_read += 1
            return super().__getitem__(index)

    known = Watched(range(100))
    table = PenaltyTable()
    table.counts_of(7, known, 99, 50)
    known.n_read = 0
    table.counts_of(7, known, 100, 50)
    assert known.n_read == 1


def test_a_forgotten_sequence_is_counted_anew() -> None:
    """Forgetting takes any id."""
    table = PenaltyTable()
    first = table.counts_of(7, [1, 2, 3], 3, 3)
    table.forget([7, 8])
    assert len(table) == 0
    assert table.counts_of(7, [1, 2, 3], 3, 3) is not first


def test_a_sequence_that_got_shorter_is_counted_anew() -> None:
    """Not what the scheduler does; what was counted would be wrong."""
    table = PenaltyTable()
    table.counts_of(7, [1, 1, 1], 3, 0)
    assert table.counts_of(7, [1, 1, 1], 2, 0).n_seen == 2


@pytest.mark.parametrize(
    ("sampling", "has"),
    [
        (SamplingParams(), False),
        (SamplingParams(presence_penalty=-0.1), True),
        (SamplingParams(frequency_penalty=0.1), True),
        (SamplingParams(repetition_penalty=0.9), True),
    ],
)
def test_has_penalties_when_one_is_set(sampling: SamplingParams, has: bool) -> None:
    """Each of the three alone."""
    assert has_penalties(sampling) is has


@pytest.mark.parametrize("n_before", [0, 5, 130])
def test_drafts_count_for_one_application_only(n_before: int) -> None:
    """As if they had been generated: tokens seen before, new ones, and one twice. Then all is as it was."""
    rng = np.random.default_rng(2)
    known = rng.permutation(150)[:n_before].tolist()
    drafts = [7, 149, 7, *known[:2]]
    logits = rng.normal(0, 3, 150).astype(np.float32)
    counts = TokenCounts()
    counts.advance(known, n_before, 3)
    for _ in range(2):
        with_drafts, without = logits.copy(), logits.copy()
        counts.apply(with_drafts, SAMPLING, drafts)
        counts.apply(without, SAMPLING)
        np.testing.assert_allclose(
            with_drafts, expected(logits, [*known, *drafts], min(3, n_before)), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(without, expected(logits, known, 3), rtol=1e-5, atol=1e-5)
    counts.advance([*known, 9], n_before + 1, 3)
    assert counts.n_seen == n_before + 1
