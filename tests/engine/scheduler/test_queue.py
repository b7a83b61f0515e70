"""The queue of those that wait."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.queue import WaitingQueue
from sluiceway.errors import InvariantError
from support.scheduling import request


def drain(queue: WaitingQueue) -> list[int]:
    rids = []
    while (head := queue.first()) is not None:
        queue.remove(head.rid)
        rids.append(head.rid)
    return rids


def test_first_come_is_first_served() -> None:
    """Order of arrival."""
    queue = WaitingQueue()
    for rid in (3, 1, 2):
        queue.push_back(request(rid))
    assert len(queue) == 3 and 1 in queue and 9 not in queue
    assert drain(queue) == [3, 1, 2]


def test_one_that_was_in_before_goes_ahead_when_it_returns() -> None:
    """The last to be pushed to the front is the first."""
    queue = WaitingQueue()
    queue.push_back(request(1))
    queue.push_front(request(2))
    queue.push_front(request(3))
    assert drain(queue) == [3, 2, 1]


def test_order_stays_when_one_leaves_from_the_middle() -> None:
    """The others do not notice."""
    queue = WaitingQueue()
    for rid in range(5):
        queue.push_back(request(rid))
    queue.remove(2)
    assert drain(queue) == [0, 1, 3, 4]


def test_nobody_is_first_when_the_queue_is_empty() -> None:
    """None, and no exception."""
    assert WaitingQueue().first() is None


def test_removal_raises_when_it_does_not_stand_here() -> None:
    """Our own bug."""
    with pytest.raises(InvariantError, match="does not stand"):
        WaitingQueue().remove(1)


def test_pushing_raises_when_it_stands_here_already() -> None:
    """From either end."""
    queue = WaitingQueue()
    queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_front(request(1))


def test_order_is_told_when_it_is_asked_for() -> None:
    """The next to be scheduled comes first."""
    queue = WaitingQueue()
    for rid in (3, 1):
        queue.push_back(request(rid))
    queue.push_front(request(2))
    assert list(queue) == [2, 3, 1]
