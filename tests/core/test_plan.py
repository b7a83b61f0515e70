"""The contract between scheduler and runner."""

from __future__ import annotations

from sluiceway.core.plan import Plan, Row
from sluiceway.types import SamplingParams


def row(n_tokens: int) -> Row:
    return Row(
        rid=1,
        known=[1] * n_tokens,
        start=0,
        n_tokens=n_tokens,
        block_ids=[0],
        samples=True,
        n_prompt=n_tokens,
        sampling=SamplingParams(),
        seed=0,
    )


def test_tokens_of_a_plan_are_those_of_its_rows() -> None:
    """What the step computes, and what its budget bounds."""
    assert Plan(1, (), ()).n_tokens == 0
    assert Plan(1, (row(3), row(1)), ()).n_tokens == 4
