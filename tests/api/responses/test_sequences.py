"""Every sequence stands in one table until its terminal; what came in equals what went out and what is here."""

from __future__ import annotations

import pytest

from sluiceway.api.responses.answer import Answer
from sluiceway.api.responses.sequences import Route, Sequences, Tombstone
from sluiceway.protocols.openai.completions import parse_completion
from sluiceway.response.budget import Budget
from sluiceway.types import FinishReason
from support.asgi_driver import completion
from support.orders import order_of


def answer_of(*rids: int) -> Answer:
    request = parse_completion(completion(n=len(rids)))
    return Answer(order_of(request), rids, Budget(max_bytes=1 << 20, max_events=1 << 20), 0.0)


@pytest.fixture
def sequences() -> Sequences:
    """One answer with three choices: 1, 2, 3."""
    sequences = Sequences()
    sequences.open(answer_of(1, 2, 3), (1, 2, 3))
    return sequences


def counts(sequences: Sequences) -> dict[str, int]:
    """Those that are not zero; the rules hold."""
    assert sequences.violations() == []
    return {name: count for name, count in sequences.counts().items() if count}


def test_events_find_their_choice_while_it_is_wanted(sequences: Sequences) -> None:
    """By the order of the ids."""
    routes = [sequences.route_of(rid) for rid in (1, 2, 3)]
    assert [route.index for route in routes if route is not None] == [0, 1, 2]
    assert sequences.route_of(4) is None
    assert counts(sequences) == {"live": 3, "submitted": 3}


def test_a_cancelled_sequence_is_remembered_until_its_terminal(sequences: Sequences) -> None:
    """Only those that lived need a cancel; asking again finds none."""
    assert sequences.bury([2, 3, 9], FinishReason.CANCELLED, 5.0) == (2, 3)
    assert sequences.bury([2, 3], FinishReason.DRAINING, 6.0) == ()
    assert sequences.route_of(2) is None and len(sequences) == 3
    assert counts(sequences) == {"live": 1, "tombstones": 2, "submitted": 3}
    buried = sequences.settle(2)
    assert isinstance(buried, Tombstone) and (buried.reason, buried.since_s) == (FinishReason.CANCELLED, 5.0)
    assert sequences.settle(2) is None
    assert counts(sequences) == {"live": 1, "tombstones": 1, "submitted": 3, "finished": 1}


def test_a_sequence_that_finishes_leaves_its_route(sequences: Sequences) -> None:
    """Once; an unknown id changes nothing."""
    settled = sequences.settle(1)
    assert isinstance(settled, Route) and settled.index == 0
    assert sequences.settle(1) is None and sequences.settle(77) is None
    assert counts(sequences) == {"live": 2, "submitted": 3, "finished": 1}


def test_everything_is_settled_when_no_terminal_will_come(sequences: Sequences) -> None:
    """Of both tables."""
    sequences.bury([1], FinishReason.CANCELLED, 5.0)
    settled = sequences.settle_all()
    assert sum(isinstance(one, Tombstone) for one in settled) == 1 and len(settled) == 3
    assert len(sequences) == 0 and sequences.settle_all() == []
    assert counts(sequences) == {"submitted": 3, "finished": 3}


def test_a_refused_request_leaves_both_tables(sequences: Sequences) -> None:
    """Some of it was cancelled meanwhile; nothing of it is a finish."""
    sequences.bury([3], FinishReason.CANCELLED, 5.0)
    rejected = sequences.reject([1, 2, 3, 4])
    assert [type(one) for one in rejected] == [Route, Route, Tombstone]
    assert counts(sequences) == {"submitted": 3, "rejected": 3}


def test_a_lost_sequence_is_named(sequences: Sequences) -> None:
    """With the numbers that do not agree."""
    sequences.open(answer_of(3), (3,))
    (sentence,) = sequences.violations()
    assert "4 sequences were submitted" in sentence and "are 3" in sentence
