"""The budget knows how much is held in all, and the pressure that follows."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConfigError, InvariantError
from sluiceway.response.budget import MUCH_BYTES, Budget
from sluiceway.response.policy import Pressure


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
    """The bound that is nearer counts."""
    assert filled(*sizes).pressure is expected


def test_released_bytes_lower_the_pressure() -> None:
    budget = filled(50, 40)
    budget.release(90, 2)
    assert (budget.n_bytes, budget.n_events, budget.pressure) == (0, 0, Pressure.NONE)


def test_large_memory_is_freed_in_portions() -> None:
    """Portions may have any size. Little memory is not kept for this."""
    budget = Budget(max_bytes=1, max_events=1)
    budget.free_later([b"little"])
    assert not budget.has_memory_to_free
    budget.free_later([bytes(MUCH_BYTES // 4) for _ in range(5)])
    budget.free_later([bytes(MUCH_BYTES), b"x"])
    freed = [(budget.has_memory_to_free, budget.free_some(MUCH_BYTES // 2)) for _ in range(4)]
    assert freed == [
        (True, MUCH_BYTES // 2),
        (True, MUCH_BYTES // 2),
        (True, MUCH_BYTES // 4 + 1 + MUCH_BYTES),
        (False, 0),
    ]


@pytest.mark.parametrize(("n_bytes", "n_events"), [(11, 1), (10, 2)])
def test_a_second_release_raises(n_bytes: int, n_events: int) -> None:
    """The attempt changes nothing."""
    budget = filled(10)
    with pytest.raises(InvariantError, match="less is held"):
        budget.release(n_bytes, n_events)
    assert (budget.n_bytes, budget.n_events) == (10, 1)


@pytest.mark.parametrize("field", ["max_bytes", "max_events", "max_kept"])
def test_a_bound_below_one_is_refused(field: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError) as caught:
        Budget(**{"max_bytes": 1, "max_events": 1, "max_kept": 1, field: 0})
    assert caught.value.field == field


class Kept:
    """Responses that are kept, each with ten bytes."""

    def __init__(self, budget: Budget, *names: str) -> None:
        self.budget = budget
        self.gone: list[str] = []
        for name in names:
            budget.hold(10)
            budget.keep(name, lambda name=name: self.evict_if_idle(name), name[:-1], 10)  # type: ignore[misc]

    def evict_if_idle(self, name: str) -> None:
        self.gone.append(name)
        self.budget.release(10, 1)


def test_kept_responses_are_evicted_when_memory_gets_short() -> None:
    """The oldest are evicted first, no more than necessary, and before there is any pressure."""
    budget = filled(30)
    shelf = Kept(budget, "a", "b", "c")
    budget.keep("a", lambda: pytest.fail("it was kept already, and stands where it stood"))
    budget.hold(15)
    assert (shelf.gone, budget.n_bytes, budget.pressure) == ([], 75, Pressure.NONE)
    budget.hold(1)
    assert (shelf.gone, budget.n_bytes, budget.pressure) == (["a"], 66, Pressure.NONE)
    budget.hold(15)
    assert (shelf.gone, budget.n_bytes, budget.pressure) == (["a", "b"], 71, Pressure.NONE)
    budget.hold(20)
    assert shelf.gone == ["a", "b", "c"] and budget.pressure is Pressure.TIGHT


def test_kept_responses_are_evicted_when_they_are_too_many() -> None:
    """Their size does not matter."""
    budget = Budget(max_bytes=1000, max_events=1000, max_kept=2)
    first = Kept(budget, "a", "b")
    assert first.gone == []
    Kept(budget, "c")
    assert first.gone == ["a"] and budget.n_events == 2


def test_the_caller_that_keeps_the_most_loses_the_first() -> None:
    """The bound in number and a lack of memory both count."""
    budget = Budget(max_bytes=100, max_events=1000, max_kept=4)
    shelf = Kept(budget, "b1", "a1", "a2", "a3", "a4", "a5")
    assert shelf.gone == ["a1", "a2"] and budget.n_bytes == 40
    budget.hold(45)
    assert shelf.gone == ["a1", "a2", "a3"] and budget.n_bytes == 75
    newcomer = Kept(budget, "c1")
    assert (shelf.gone, newcomer.gone) == (["a1", "a2", "a3", "a4"], [])


def test_a_caller_with_as_much_as_others_loses_its_own_response() -> None:
    """The response that was about to be kept is evicted."""
    budget = Budget(max_bytes=1000, max_events=1000, max_kept=2)
    shelf = Kept(budget, "a1", "b1", "c1", "d1")
    assert shelf.gone == ["c1", "d1"]


def test_a_response_that_is_read_again_is_not_evicted() -> None:
    """`reclaim` may be called for a response that is not kept."""
    budget = filled(50)
    shelf = Kept(budget, "a", "b")
    budget.reclaim("a")
    budget.reclaim("z")
    budget.hold(20)
    assert shelf.gone == ["b"] and budget.pressure is Pressure.TIGHT


def test_gathered_bytes_count_without_an_event() -> None:
    """Kept responses are evicted for them, as for events."""
    budget, left = filled(), list[str]()
    budget.keep("kept", lambda: left.append("kept"))
    budget.hold(80, 0)
    assert (budget.n_bytes, budget.n_events, budget.pressure, left) == (80, 0, Pressure.TIGHT, ["kept"])


def test_the_largest_answer_causes_no_pressure() -> None:
    """Its limit is the amount at which pressure begins."""
    budget = filled(75)
    assert budget.max_answer_bytes == 75 and budget.pressure is Pressure.NONE
