"""Token counts equal a plain recount."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sluiceway.model.penalties import PenaltyTable, TokenCounts, has_penalties, lower_seen
from sluiceway.types import SamplingParams

SAMPLING = SamplingParams(repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.125)


def expected(logits: np.ndarray, known: list[int], n_prompt: int) -> np.ndarray:
    """Compute the logits by the definitions, token by token."""
    out = logits.astype(np.float64)
    for token in set(known):
        out[token] = out[token] / 1.5 if out[token] > 0 else out[token] * 1.5
        n_generated = known[n_prompt:].count(token)
        out[token] -= 0.125 * n_generated + 0.25 * (n_generated > 0)
    return out


def lowered(logits: np.ndarray, counts: TokenCounts, drafts: Sequence[int] = ()) -> np.ndarray:
    result = logits[np.newaxis].copy()
    lower_seen(result, [(0, counts.with_drafts(drafts), SAMPLING)])
    return np.asarray(result[0])


@pytest.mark.parametrize("steps", [[200], [1, 2, 50, 51, 200], list(range(1, 201))])
def test_logits_equal_a_recount_however_the_sequence_grew(steps: list[int]) -> None:
    """The sequence has more distinct tokens than the first array can hold. Prompt and answer have common tokens."""
    rng = np.random.default_rng(1)
    known = rng.integers(0, 150, 200).tolist()
    logits = rng.normal(0, 3, 150).astype(np.float32)
    counts = TokenCounts()
    for n_known in steps:
        counts.advance(known, n_known, 60)
    result = lowered(logits, counts)
    np.testing.assert_allclose(result, expected(logits, known, 60), rtol=1e-5, atol=1e-5)


def test_a_banned_logit_stays_banned() -> None:
    """Minus infinity times a penalty is minus infinity."""
    counts = TokenCounts()
    counts.advance([0], 1, 0)
    logits = np.array([-np.inf, 1.0], dtype=np.float32)
    assert lowered(logits, counts).tolist() == [-np.inf, 1.0]


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
    """Any id may be forgotten."""
    table = PenaltyTable()
    first = table.counts_of(7, [1, 2, 3], 3, 3)
    table.forget([7, 8])
    assert len(table) == 0
    assert table.counts_of(7, [1, 2, 3], 3, 3) is not first


def test_a_sequence_that_got_shorter_is_counted_anew() -> None:
    """The scheduler never does this. The old counts would be wrong."""
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
def test_one_penalty_is_enough_to_have_penalties(sampling: SamplingParams, has: bool) -> None:
    """Each of the three penalties is enough."""
    assert has_penalties(sampling) is has


@pytest.mark.parametrize("n_before", [0, 5, 130])
def test_drafts_count_for_one_application_only(n_before: int) -> None:
    """Drafts count as if they had been generated, and are then removed: tokens seen before, new ones, and one twice."""
    rng = np.random.default_rng(2)
    known = rng.permutation(150)[:n_before].tolist()
    drafts = [7, 149, 7, *known[:2]]
    logits = rng.normal(0, 3, 150).astype(np.float32)
    counts = TokenCounts()
    counts.advance(known, n_before, 3)
    for _ in range(2):
        with_drafts, without = lowered(logits, counts, drafts), lowered(logits, counts)
        np.testing.assert_allclose(
            with_drafts, expected(logits, [*known, *drafts], min(3, n_before)), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(without, expected(logits, known, 3), rtol=1e-5, atol=1e-5)
    counts.advance([*known, 9], n_before + 1, 3)
    assert counts.n_seen == n_before + 1


def test_rows_are_lowered_each_by_its_own_sequence_when_they_share_a_pass() -> None:
    """Rows without penalties do not change. One sequence may have several rows, with other drafts and settings."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (4, 50)).astype(np.float32)
    one, other = TokenCounts(), TokenCounts()
    one.advance([1, 2, 3, 2], 4, 2)
    other.advance([4, 4, 4], 3, 0)
    seen = [
        (0, one.with_drafts([7]), SAMPLING),
        (1, one.with_drafts(), SamplingParams(presence_penalty=-1.0)),
        (3, other.with_drafts([8, 9]), SAMPLING),
    ]
    result = logits.copy()
    lower_seen(result, seen)
    np.testing.assert_allclose(result[0], expected(logits[0], [1, 2, 3, 2, 7], 2), rtol=1e-5)
    np.testing.assert_array_equal(result[1] - logits[1] > 0.5, [token in (2, 3) for token in range(50)])
    np.testing.assert_array_equal(result[2], logits[2])
    np.testing.assert_allclose(result[3], expected(logits[3], [4, 4, 4, 8, 9], 0), rtol=1e-5)


def test_nothing_is_lowered_when_no_sequence_has_penalties() -> None:
    """The step has only sequences without penalties."""
    logits = np.ones((2, 3), dtype=np.float32)
    lower_seen(logits, [])
    assert logits.tolist() == [[1.0] * 3] * 2
