"""The history remembers for a while how responses ended, for their callers only."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConfigError
from sluiceway.response.history import History, StreamRecord
from sluiceway.types import FinishReason


def record(stream_id: str) -> StreamRecord:
    return StreamRecord(
        stream_id=stream_id,
        state="closed",
        reason=FinishReason.STOP.value,
        generated_tokens=3,
        delivered_tokens=3,
        wasted_tokens=0,
        prompt_tokens=5,
        completion_tokens=3,
        cached_tokens=2,
        last_event_id=2,
        is_resumable=True,
        opened_s=1.0,
        ended_s=4.0,
    )


def test_only_its_caller_gets_a_record() -> None:
    """Another caller may have chosen the same id."""
    history, ours, yours = History(max_records=2, ttl_s=10.0), record("a"), record("a")
    history.add(ours, "me", 0.0)
    assert history.find("a", "me", 1.0) is ours
    assert history.find("a", "you", 1.0) is None
    assert history.find("b", "me", 1.0) is None
    history.add(yours, "you", 1.0)
    assert history.find("a", "me", 1.0) is ours and history.find("a", "you", 1.0) is yours


def test_a_record_replaces_an_earlier_one_with_its_id() -> None:
    """It is the newest from then on, so older records are forgotten before it."""
    history = History(max_records=2, ttl_s=10.0)
    for second, stream_id in enumerate("aba"):
        history.add(record(stream_id), "me", float(second))
    assert [one.stream_id for one in history.records("me", 3.0)] == ["b", "a"]
    assert [one.stream_id for one in history.records("me", 11.5)] == ["a"]


def test_the_oldest_record_is_forgotten_when_there_are_too_many() -> None:
    history = History(max_records=2, ttl_s=10.0)
    for stream_id in "abc":
        history.add(record(stream_id), "me", 0.0)
    assert history.find("a", "me", 0.0) is None
    assert len(history) == 2


def test_a_caller_takes_no_room_from_callers_with_as_much() -> None:
    """A caller with many records loses its own. So does one that sends new credentials each time."""
    history = History(max_records=4, ttl_s=10.0)
    history.add(record("mine"), "me", 0.0)
    for n in range(20):
        history.add(record(f"many-{n}"), "many", 1.0)
        history.add(record("one"), f"caller-{n}", 1.0)
    assert history.find("mine", "me", 2.0) == record("mine")
    assert len(history) == 4


def test_a_record_is_forgotten_when_its_time_is_over() -> None:
    """Its age counts, whether or not anyone asks for it."""
    history = History(max_records=9, ttl_s=10.0)
    history.add(record("a"), "me", 0.0)
    history.add(record("b"), "me", 5.0)
    assert history.find("a", "me", 10.0) is None
    assert history.find("b", "me", 10.0) == record("b")
    history.add(record("c"), "me", 15.0)
    assert len(history) == 1
    assert history.find("c", "me", 99.0) is None and len(history) == 0


@pytest.mark.parametrize("field", ["max_records", "ttl_s"])
def test_a_bound_of_zero_is_refused(field: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=field):
        History(**{"max_records": 1, "ttl_s": 1, field: 0})


def test_a_caller_gets_its_own_records() -> None:
    """The oldest record comes first."""
    history = History(max_records=9, ttl_s=10.0)
    for second, (stream_id, caller) in enumerate([("a", "me"), ("b", "you"), ("c", "me")]):
        history.add(record(stream_id), caller, float(second))
    assert [one.stream_id for one in history.records("me", 5.0)] == ["a", "c"]
    assert [one.stream_id for one in history.records("me", 11.0)] == ["c"]
