"""Ranges of numbers: what is inside, and how messages describe them."""

from __future__ import annotations

import pytest

from sluiceway.ranges import Range

TEMPERATURE, TOP_P, SEED = Range(0, 2), Range(0, 1, is_above=True), Range(-(1 << 63), (1 << 64) - 1)


@pytest.mark.parametrize("value", [0, 2, 0.5, -0.0])
def test_ends_belong_to_a_range(value: float) -> None:
    assert TEMPERATURE.holds(value)


@pytest.mark.parametrize("value", [-0.001, 2.001, float("nan"), float("inf"), float("-inf"), 10**400])
def test_other_numbers_are_outside(value: float) -> None:
    """NaN too, although no comparison with it is true."""
    assert not TEMPERATURE.holds(value)


def test_lower_end_may_be_outside() -> None:
    assert not TOP_P.holds(0.0)
    assert TOP_P.holds(1e-9) and TOP_P.holds(1.0)


def test_large_integers_are_compared_exactly() -> None:
    """As floats, 2**64 and 2**64 - 1 are equal."""
    assert SEED.holds((1 << 64) - 1) and SEED.holds(-(1 << 63))
    assert not SEED.holds(1 << 64) and not SEED.holds(-(1 << 63) - 1)


def test_range_describes_itself() -> None:
    assert (str(Range(0, 5)), str(TOP_P)) == ("from 0 to 5", "above 0 and at most 1")
