"""What is held in all is known, and its pressure grows with it."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConfigError, InvariantError
from sluiceway.stream.budget import Budget
from sluiceway.stream.policy import Pressure


def filled(*sizes: int) -> Budget:
    budget = Budget(max_bytes=100, max_events=8)
    for size in sizes:
        budget.hold(size)
    return budget


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), Pressure.NONE),
        ((75,), Pressure.NONE),
        ((76,), Pressure.TIGHT),
        ((100,), Pressure.TIGHT),
        ((101,), Pressure.FULL),
        ((1,) * 6, Pressure.NONE),
        ((1,) * 7, Pressure.TIGHT),
        ((1,) * 9, Pressure.FULL),
    ],
)
def test_pressure_grows_with_bytes_and_with_events(sizes: tuple[int, ...], expected: Pressure) -> None:
    """Whichever of the two is nearer to its bound."""
    assert filled(*sizes).pressure is expected


def test_what_is_released_is_not_held_any_more() -> None:
    """And pressure falls."""
    budget = filled(50, 40)
    budget.release(90, 2)
    assert (budget.n_bytes, budget.n_events, budget.pressure) == (0, 0, Pressure.NONE)


@pytest.mark.parametrize(("n_bytes", "n_events"), [(11, 1), (10, 2)])
def test_a_second_release_raises(n_bytes: int, n_events: int) -> None:
    """What is not held cannot be given back, and nothing is changed by trying."""
    budget = filled(10)
    with pytest.raises(InvariantError, match="less is held"):
        budget.release(n_bytes, n_events)
    assert (budget.n_bytes, budget.n_events) == (10, 1)


@pytest.mark.parametrize("field", ["max_bytes", "max_events"])
def test_a_budget_of_nothing_is_refused(field: str) -> None:
    """By the name of the field."""
    with pytest.raises(ConfigError) as caught:
        Budget(**{"max_bytes": 1, "max_events": 1, field: 0})
    assert caught.value.field == field
