"""What is held in all is known, and its pressure grows with it."""

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
    """Whichever of the two is nearer to its bound."""
    assert filled(*sizes).pressure is expected


def test_what_is_released_is_not_held_any_more() -> None:
    """And pressure falls."""
    budget = filled(50, 40)
    budget.release(90, 2)
    assert (budget.n_bytes, budget.n_events, budget.pressure) == (0, 0, Pressure.NONE)


def test_what_was_much_is_freed_bit_by_bit() -> None:
    """Piece by piece, in whatever portions; what is little is not kept for that."""
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
    """What is not held cannot be given back, and nothing is changed by trying."""
    budget = filled(10)
    with pytest.raises(InvariantError, match="less is held"):
        budget.release(n_bytes, n_events)
    assert (budget.n_bytes, budget.n_events) == (10, 1)


@pytest.mark.parametrize("field", ["max_bytes", "max_events", "max_kept"])
def test_a_budget_of_nothing_is_refused(field: str) -> None:
    """By the name of the field."""
    with pytest.raises(ConfigError) as caught:
        Budget(**{"max_bytes": 1, "max_events": 1, "max_kept": 1, field: 0})
    assert caught.value.field == field


class Shelf:
    """Responses that are kept, ten bytes each."""

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
    """The longest kept first, no more of them than need be, and before anybody feels pressure."""
    budget = filled(30)
    shelf = Shelf(budget, "a", "b", "c")
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
    """However small each is."""
    budget = Budget(max_bytes=1000, max_events=1000, max_kept=2)
    first = Shelf(budget, "a", "b")
    assert first.gone == []
    Shelf(budget, "c")
    assert first.gone == ["a"] and budget.n_events == 2


def test_the_caller_that_keeps_the_most_loses_the_first() -> None:
    """Both where they are too many, and where memory gets short."""
    budget = Budget(max_bytes=100, max_events=1000, max_kept=4)
    shelf = Shelf(budget, "b1", "a1", "a2", "a3", "a4", "a5")
    assert shelf.gone == ["a1", "a2"] and budget.n_bytes == 40
    budget.hold(45)
    assert shelf.gone == ["a1", "a2", "a3"] and budget.n_bytes == 75
    newcomer = Shelf(budget, "c1")
    assert (shelf.gone, newcomer.gone) == (["a1", "a2", "a3", "a4"], [])


def test_who_has_as_much_as_any_takes_from_nobody() -> None:
    """The response that was about to be kept is evicted itself."""
    budget = Budget(max_bytes=1000, max_events=1000, max_kept=2)
    shelf = Shelf(budget, "a1", "b1", "c1", "d1")
    assert shelf.gone == ["c1", "d1"]


def test_a_response_that_is_read_again_is_not_evicted() -> None:
    """It is as dear as any other; what is not kept may be reclaimed."""
    budget = filled(50)
    shelf = Shelf(budget, "a", "b")
    budget.reclaim("a")
    budget.reclaim("z")
    budget.hold(20)
    assert shelf.gone == ["b"] and budget.pressure is Pressure.TIGHT


def test_bytes_that_are_gathered_are_no_event() -> None:
    """They count like events, and kept responses are evicted for them."""
    budget, left = filled(), list[str]()
    budget.keep("kept", lambda: left.append("kept"))
    budget.hold(80, 0)
    assert (budget.n_bytes, budget.n_events, budget.pressure, left) == (80, 0, Pressure.TIGHT, ["kept"])


def test_one_whole_answer_puts_nobody_under_pressure() -> None:
    """The most that it may have is what all may have before there is any."""
    budget = filled(75)
    assert budget.max_answer_bytes == 75 and budget.pressure is Pressure.NONE
