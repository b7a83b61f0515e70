"""Both forms of waiting events give the same bytes, whenever they are taken."""

from __future__ import annotations

from typing import get_args

import pytest

from sluiceway.ipc.messages.to_api import Delta
from sluiceway.response.budget import Budget
from sluiceway.response.readers import WRITE_BYTES
from sluiceway.sse.decoder import EventDecoder
from sluiceway_lab.load.held import FormatTime, Spoken, WaitingEvents, framer_of, held

WAYS: tuple[FormatTime, ...] = get_args(FormatTime)
SPOKEN: tuple[Spoken, ...] = get_args(Spoken)
DELTAS = [Delta(0, f" w{number}", (number,)) for number in range(50)]


def waiting(way: FormatTime, spoken: Spoken, *, model: str = "m", budget: Budget | None = None) -> WaitingEvents:
    return held(way, framer_of(spoken, model, len(DELTAS)), budget or Budget(max_bytes=1 << 30, max_events=1 << 30))


def taken(waiting: WaitingEvents, deltas: list[Delta], every: int) -> list[bytes]:
    """What is taken after every so many deltas, until nothing is left."""
    pieces = []
    for number, delta in enumerate(deltas, 1):
        waiting.add(delta)
        while number % every == 0 and (data := waiting.take()):
            pieces.append(data)
    while data := waiting.take():
        pieces.append(data)
    return pieces


@pytest.mark.parametrize("spoken", SPOKEN)
@pytest.mark.parametrize("way", WAYS)
def test_reader_gets_every_text_in_order(way: FormatTime, spoken: Spoken) -> None:
    for every in (1, 7, len(DELTAS) + 1):
        events = list(EventDecoder().feed(b"".join(taken(waiting(way, spoken), DELTAS, every))))
        assert len(events) == len(DELTAS)
        assert all(f'"{delta.text}"' in event.data for event, delta in zip(events, DELTAS, strict=True))


@pytest.mark.parametrize("spoken", SPOKEN)
def test_both_ways_give_the_same_bytes(spoken: Spoken) -> None:
    made, written = (b"".join(taken(waiting(way, spoken), DELTAS, 3)) for way in WAYS)
    assert made == written


@pytest.mark.parametrize("way", WAYS)
def test_one_write_is_of_bounded_length(way: FormatTime) -> None:
    """A write exceeds the bound by at most one event."""
    model = "x" * 20_000
    pieces = taken(waiting(way, "chat", model=model), DELTAS, len(DELTAS) + 1)
    assert max(map(len, pieces)) < WRITE_BYTES + 21_000 and len(pieces) > len(DELTAS) / 5


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_is_counted_and_then_released(way: FormatTime) -> None:
    budget = Budget(max_bytes=1 << 30, max_events=1 << 30)
    one = waiting(way, "native", budget=budget)
    for delta in DELTAS:
        one.add(delta)
    assert one.n_events == budget.n_events == len(DELTAS)
    assert (budget.n_bytes == len(DELTAS)) == (way == "when written")
    one.take()
    assert (one.n_events, budget.n_events, budget.n_bytes, one.take()) == (0, 0, 0, b"")
