"""Each item is due once, at its time, however often its timer was set."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.api.responses.registry import TimerWheel


def test_an_item_is_due_once_at_its_time() -> None:
    """It is not due earlier. The earliest item comes first."""
    agenda: TimerWheel[str] = TimerWheel(0.25)
    agenda.set("b", 2.0)
    agenda.set("a", 1.0)
    assert len(agenda) == 2
    assert agenda.due(0.9) == []
    assert agenda.due(5.0) == ["a", "b"]
    assert agenda.due(9.0) == [] and len(agenda) == 0


def test_the_last_timer_counts() -> None:
    """It may be later or earlier than the one before. Infinity means no timer."""
    agenda: TimerWheel[str] = TimerWheel(0.25)
    agenda.set("a", 1.0)
    agenda.set("a", 3.0)
    assert agenda.due(2.0) == []
    agenda.set_next("a")
    agenda.set_next("a")
    assert agenda.due(2.0) == ["a"]
    agenda.set("a", 3.0)
    agenda.set("a", math.inf)
    agenda.drop("a")
    assert agenda.due(9.0) == []


def test_a_past_time_means_the_next_tick() -> None:
    """The clock need not have moved since."""
    agenda: TimerWheel[str] = TimerWheel(0.25)
    agenda.due(7.0)
    agenda.set("a", 0.0)
    assert agenda.due(7.0) == ["a"]


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 20)), max_size=20), st.lists(st.floats(0, 5), max_size=8))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_no_item_is_forgotten_or_early(plans: list[tuple[int, float]], steps: list[float]) -> None:
    """A call may be one tick ahead of the clock."""
    agenda: TimerWheel[int] = TimerWheel(0.25)
    wanted: dict[int, float] = {}
    for thing, at_s in plans:
        agenda.set(thing, at_s)
        wanted[thing] = at_s
    now_s = 0.0
    for n, step in enumerate([*steps, 100.0]):
        now_s += step
        for thing in agenda.due(now_s):
            assert wanted.pop(thing) <= now_s + 0.25 * (n + 1)
    assert not wanted and len(agenda) == 0
