"""Who gives way to whom."""

from __future__ import annotations

from sluiceway.engine.scheduler.request import Input, Request
from sluiceway.engine.scheduler.victims import Victims
from support.scheduling import request


def seated(arrival: int, *, paused: bool = False) -> Request:
    one = request(arrival, arrival=arrival)
    one.receive(Input.SCHEDULE)
    if paused:
        one.receive(Input.PAUSE)
    return one


def test_youngest_gives_way_first_when_all_run() -> None:
    """And the one that asks gives way to itself never."""
    oldest, middle, youngest = seated(0), seated(1), seated(2)
    victims = Victims([middle, youngest, oldest])
    assert victims.pop_for(oldest) is youngest
    assert victims.pop_for(oldest) is middle
    assert victims.pop_for(oldest) is None


def test_older_ones_do_not_give_way_to_a_younger() -> None:
    """Or two would take from each other in turn."""
    old, young = seated(0), seated(1)
    assert Victims([old, young]).pop_for(young) is None


def test_paused_ones_give_way_first_when_there_are_any() -> None:
    """Even older ones, even to the youngest: nobody reads them now."""
    paused_old, paused_young, needy = seated(0, paused=True), seated(1, paused=True), seated(2)
    victims = Victims([paused_old, paused_young, needy])
    assert victims.pop_for(needy) is paused_young
    assert victims.pop_for(needy) is paused_old
    assert victims.pop_for(needy) is None


def test_nobody_gives_way_when_nobody_is_seated() -> None:
    """None, and no exception."""
    assert Victims([]).pop_for(seated(0)) is None
