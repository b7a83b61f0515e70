"""The contract between scheduler and runner."""

from __future__ import annotations

from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.types import SamplingParams


def row(n_tokens: int, start: int = 0, *, samples: bool = True) -> Row:
    return Row(
        rid=1,
        known=list(range(start + n_tokens)),
        start=start,
        n_tokens=n_tokens,
        block_ids=[0],
        samples=samples,
        n_prompt=n_tokens,
        sampling=SamplingParams(),
        seed=0,
    )


def test_tokens_of_a_plan_are_those_of_its_rows() -> None:
    """The budget of a step bounds this number."""
    assert Plan(1, (), ()).n_tokens == 0
    assert Plan(1, (row(3), row(1)), ()).n_tokens == 4


def test_tokens_of_a_row_are_the_known_tokens_from_its_start() -> None:
    """Tokens that become known later do not belong to it."""
    one = row(3, start=2)
    one.known.append(99)  # type: ignore[attr-defined]
    assert one.token_ids == [2, 3, 4]


def test_drafts_follow_the_known_tokens_and_each_is_sampled_after() -> None:
    """They count as tokens of the row."""
    one = row(1, start=4).with_drafts((7, 8))
    assert (one.start, one.n_tokens, one.token_ids, one.n_samples) == (4, 3, [4, 7, 8], 3)
    assert Plan(1, (one, row(2)), ()).n_tokens == 5


def test_row_without_drafts_samples_once_or_not_at_all() -> None:
    one, chunk = row(3), row(3, samples=False)
    assert (one.n_samples, list(one.samplings())) == (1, [one])
    assert (chunk.n_samples, list(chunk.samplings())) == (0, [])


def test_each_sampling_of_a_row_ends_one_draft_later() -> None:
    """Each is the row with the drafts up to there."""
    one = row(2, start=4)
    assert one.with_drafts((7, 8)).samplings() == [one, one.with_drafts((7,)), one.with_drafts((7, 8))]
