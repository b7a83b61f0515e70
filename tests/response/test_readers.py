"""Of several readers the mildest decision counts, and each reader is judged on its own."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import InvariantError
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.response.backlog import START, Backlog, Cursor, Window
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import Effect, EndReader, ReaderId
from sluiceway.response.policy import POLICIES, Decision, Measure, Policy, PolicyName, Pressure
from sluiceway.response.readers import WRITE_BYTES, Backpressure, PendingWrite, Reader, Readers
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.types import FinishReason, Flow

MARKS: dict[str, Any] = {"low_events": 1, "high_events": 2, "limit_events": 4, "low_bytes": 10, "high_bytes": 20}
PAUSE = msgspec.structs.replace(POLICIES[PolicyName.PAUSE], **MARKS, stall_timeout_s=9.0)
PATIENT = msgspec.structs.replace(POLICIES[PolicyName.UNBOUNDED], stall_timeout_s=20_000.0)


class ReadersDriver:
    """A response and its readers. Every event has one byte."""

    def __init__(self, policy: Policy = PAUSE, n_readers: int = 1) -> None:
        budget = Budget(max_bytes=1 << 20, max_events=1 << 10)
        self.backlog = Backlog(budget, Window(1 << 20, 1 << 10))
        self.readers = Readers(policy)
        self.ids = [self.readers.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.backlog.push(b"x", 1)

    def write(self, reader_id: ReaderId, now_s: float = 0.0, unsent_bytes: int = 0) -> None:
        reader = self.readers.by_id[reader_id]
        assert reader.take(self.backlog)
        reader.wrote(self.backlog.end, now_s, unsent_bytes)

    def judge(self, now_s: float = 0.0, pressure: Pressure = Pressure.NONE) -> tuple[Decision, list[ReaderId]]:
        return self.readers.judge(self.backlog.end, now_s, pressure)

    def is_calm(self) -> bool:
        return self.readers.is_calm(self.backlog.end)


def test_a_response_without_readers_runs() -> None:
    """Everything counts as read."""
    driver = ReadersDriver(n_readers=0)
    driver.say(9)
    assert driver.judge() == (Decision.RUN, [])
    assert not driver.readers.has_listener
    assert driver.readers.slowest(driver.backlog.end) == driver.backlog.end
    assert driver.readers.is_done(driver.backlog.end)


def test_a_response_runs_while_one_of_two_readers_keeps_up() -> None:
    """A slow reader does not hold up the other one."""
    driver = ReadersDriver(n_readers=2)
    driver.say(3)
    driver.write(2)
    assert driver.judge() == (Decision.RUN, [])
    assert driver.readers.slowest(driver.backlog.end) == START
    driver.say(3)
    assert driver.judge() == (Decision.PAUSE, [1])


def test_a_dismissed_reader_is_not_judged() -> None:
    """The response does not wait for it either."""
    driver = ReadersDriver(n_readers=2)
    driver.say(5)
    driver.write(2)
    assert driver.judge() == (Decision.RUN, [1])
    driver.readers.skip([1], driver.backlog.end, 0.0)
    driver.readers.dismiss([1])
    assert driver.judge() == (Decision.RUN, [])
    assert driver.readers.slowest(driver.backlog.end) == driver.backlog.end
    were_listening = driver.readers.has_listener
    del driver.readers.by_id[2]
    assert (were_listening, driver.readers.has_listener) == (True, False)
    driver.say(1)
    assert driver.readers.slowest(driver.backlog.end) == driver.backlog.end


def test_a_reader_may_be_written_an_event_that_it_did_not_take() -> None:
    """It has everything then. Its transport may hold a part of the event."""
    driver = ReadersDriver()
    driver.say(1)
    driver.write(1)
    (reader,) = driver.readers.by_id.values()
    end = Cursor(2, 8, 2)
    reader.wrote(end, 3.0, 4, n_passed_bytes=7)
    assert (reader.cursor, reader.is_done(end), reader.waiting_bytes(end), reader.wrote_s) == (end, True, 4, 3.0)


def test_an_only_reader_is_the_slowest() -> None:
    """Its cursor is the one before which everything was read."""
    driver = ReadersDriver()
    driver.say(2)
    assert driver.readers.slowest(driver.backlog.end) == START
    driver.write(1)
    assert driver.readers.slowest(driver.backlog.end) == driver.backlog.end


def test_readers_need_no_judgement_until_one_may_be_behind() -> None:
    """That is at the first high-water mark. A new reader must be judged too."""
    driver = ReadersDriver()
    assert not driver.is_calm()
    driver.judge()
    driver.say(2)
    assert driver.is_calm()
    driver.say(1)
    assert not driver.is_calm()
    driver.judge()
    driver.write(1)
    assert not driver.is_calm()  # somebody was behind when it was judged
    assert not driver.readers.is_at_ease
    driver.judge()
    assert driver.is_calm()
    was_at_ease = driver.readers.is_at_ease
    driver.readers.admit(START, driver.backlog.end, 0.0)
    assert not driver.is_calm()
    assert (was_at_ease, driver.readers.is_at_ease) == (True, False)


def test_bytes_make_a_judgement_necessary_too() -> None:
    """Unsent bytes count."""
    driver = ReadersDriver()
    driver.say(1)
    driver.write(1, unsent_bytes=20)
    driver.judge()
    assert driver.is_calm()
    driver.say(1)
    assert not driver.is_calm()


def test_a_reader_stays_behind_from_one_judgement_to_the_next() -> None:
    """Between the marks, the last judgement counts."""
    driver = ReadersDriver()
    driver.say(3)
    assert driver.judge(now_s=1.0) == (Decision.PAUSE, [])
    driver.backlog.advance(START, START)
    driver.readers.by_id[1].cursor = driver.backlog.read(START, 1)[1]
    assert driver.judge(now_s=2.0) == (Decision.PAUSE, [])
    assert driver.readers.by_id[1].measure(driver.backlog.end, 3.0, Pressure.NONE).behind_s == 2.0


def test_pressure_makes_the_low_mark_count() -> None:
    driver = ReadersDriver()
    driver.say(2)
    assert driver.judge(pressure=Pressure.TIGHT) == (Decision.PAUSE, [])
    assert driver.judge(pressure=Pressure.FULL) == (Decision.DROP, [1])


def test_a_reader_that_does_not_take_the_rest_is_stalled() -> None:
    """The timeout of the policy counts if the response has ended, and for a dismissed reader."""
    driver, patient = ReadersDriver(n_readers=2), ReadersDriver(PATIENT)
    driver.say(1)
    patient.say(1)
    assert driver.readers.stalled(driver.backlog.end, 10.0, is_over=True) == [1, 2]
    assert driver.readers.stalled(driver.backlog.end, 9.0, is_over=True) == []
    assert driver.readers.stalled(driver.backlog.end, 10.0, is_over=False) == []
    assert patient.readers.stalled(patient.backlog.end, 1e4, is_over=True) == []
    driver.readers.dismiss([2])
    driver.readers.by_id[2].set_aside(b"bye", 0.0)
    assert driver.readers.stalled(driver.backlog.end, 10.0, is_over=False) == [2]


def test_what_transports_hold_is_noted() -> None:
    """A transport that is not named holds as much as before."""
    driver = ReadersDriver(n_readers=2)
    driver.say(1)
    driver.write(1, unsent_bytes=1)
    driver.write(2, unsent_bytes=1)
    driver.readers.observe(driver.backlog.end, 5.0, {1: 0})
    assert driver.readers.stalled(driver.backlog.end, 10.0, is_over=True) == [2]


def test_silent_readers_are_those_that_have_everything() -> None:
    """They were written nothing for the given time."""
    driver = ReadersDriver(n_readers=3)
    driver.say(1)
    driver.write(1, now_s=1.0)
    driver.write(3, now_s=1.0)
    driver.readers.dismiss([3])
    assert driver.readers.silent(driver.backlog.end, 16.0, 15.0) == [1]
    assert not driver.readers.is_done(driver.backlog.end)


def test_the_next_tick_is_when_the_first_reader_has_been_silent() -> None:
    """Never without a keep-alive time or without readers; now while a reader lacks something."""
    driver = ReadersDriver(n_readers=2)
    end = driver.backlog.end
    assert driver.readers.quiet_until_s(end, 15.0) == 15.0
    assert driver.readers.quiet_until_s(end, 0.0) == math.inf
    assert ReadersDriver(n_readers=0).readers.quiet_until_s(end, 15.0) == math.inf
    driver.say(1)
    driver.write(driver.ids[0], now_s=3.0)
    assert driver.readers.quiet_until_s(driver.backlog.end, 15.0) == 0.0
    driver.write(driver.ids[1], now_s=4.0)
    assert driver.readers.quiet_until_s(driver.backlog.end, 15.0) == 18.0


def test_an_event_removes_the_status_line() -> None:
    """Readers that have everything still get it, each with its next write."""
    driver = ReadersDriver(n_readers=2)
    driver.backlog.status_line = b"!"
    driver.readers.remove_status_line(driver.backlog, 1.0)
    assert driver.backlog.status_line == b""
    driver.say(1)
    batches = [driver.readers.by_id[reader_id].take(driver.backlog) for reader_id in driver.ids]
    assert [batch and batch.data for batch in batches] == [b"!x", b"!x"]


def test_a_reader_hoards_when_it_holds_much_and_takes_nothing() -> None:
    """Or when its time is over. A reader with little left does not hoard, nor one that came lately and reads."""
    policy = msgspec.structs.replace(POLICIES[PolicyName.DROP], **MARKS, limit_bytes=40, drop_after_s=5.0)
    driver = ReadersDriver(policy, n_readers=2)
    stopped, done = driver.ids
    driver.say(11)
    driver.write(done)
    end = driver.backlog.end
    assert driver.readers.hoarding(end, 2.0, 0.0) == []
    assert driver.readers.hoarding(end, 2.1, 0.0) == [stopped]
    late = driver.readers.admit(START, end, 3.0)
    driver.readers.observe(end, 8.0, {})
    for reader in driver.readers.by_id.values():
        reader.skip_to(START, 8.0)
    assert driver.readers.hoarding(end, 8.0, 4.0) == []
    assert driver.readers.hoarding(end, 8.5, 3.1) == [stopped, done, late]
    driver.readers.dismiss([stopped, done, late])
    assert driver.readers.hoarding(end, 99.0, 3.1) == []


def test_a_policy_without_a_drop_time_uses_the_default() -> None:
    """It is half a minute."""
    driver = ReadersDriver(PAUSE)
    driver.say(11)
    end = driver.backlog.end
    for reader in driver.readers.by_id.values():
        reader.skip_to(START, 30.0)
    assert (driver.readers.hoarding(end, 30.0, 0.0), driver.readers.hoarding(end, 30.1, 0.0)) == ([], driver.ids)


# One reader.


def response(*frames: bytes) -> Backlog:
    backlog = Backlog(Budget(max_bytes=1 << 20, max_events=1 << 10), Window(1 << 20, 1 << 10))
    for frame in frames:
        backlog.push(frame, 1)
    return backlog


def reader(backlog: Backlog, now_s: float = 0.0) -> Reader:
    """A reader that came before the first event."""
    return Reader(START, START, now_s)


def write(one: Reader, backlog: Backlog, now_s: float, unsent_bytes: int = 0) -> PendingWrite:
    batch = one.take(backlog)
    assert batch is not None
    one.wrote(backlog.end, now_s, unsent_bytes)
    return batch


def test_one_write_has_everything_that_waits() -> None:
    """Nothing more is taken during a write, or when nothing waits."""
    backlog = response(b"a", b"b")
    one = reader(backlog)
    assert one.take(backlog) == PendingWrite(b"ab", False)
    backlog.push(b"c", 1)
    assert one.take(backlog) is None
    one.wrote(backlog.end, 1.0, 0)
    assert one.cursor.event_id == 2
    assert write(one, backlog, 2.0) == PendingWrite(b"c", False)
    assert one.take(backlog) is None


def test_the_write_with_the_last_event_is_the_last() -> None:
    """An earlier write is not, if one write does not hold everything."""
    backlog = response(b"a" * WRITE_BYTES)
    backlog.conclude(b"$")
    one = reader(backlog)
    assert write(one, backlog, 0.0) == PendingWrite(b"a" * WRITE_BYTES, False, True)
    assert not one.is_done(backlog.end)
    assert write(one, backlog, 0.0) == PendingWrite(b"$", True)
    assert one.is_done(backlog.end)


def test_a_write_that_was_not_taken_raises() -> None:
    """A writer that reports a write twice has a bug."""
    backlog = response()
    with pytest.raises(InvariantError, match="never taken"):
        reader(backlog).wrote(backlog.end, 0.0, 0)


def test_bytes_that_are_set_aside_are_written_first() -> None:
    """Together with waiting events, or alone."""
    backlog = response(b"a")
    one = reader(backlog)
    one.set_aside(b": hello\n\n", 0.0)
    assert write(one, backlog, 0.0).data == b": hello\n\na"
    one.set_aside(b": again\n\n", 0.0)
    assert write(one, backlog, 0.0) == PendingWrite(b": again\n\n", False)
    assert one.cursor == backlog.end


def test_a_dismissed_reader_gets_its_last_event_alone() -> None:
    """It replaces waiting events, and a comment too."""
    backlog = response(b"a", b"b")
    one = reader(backlog)
    one.set_aside(b": comment\n\n", 0.0)
    one.skip_to(backlog.end, 0.0)
    one.is_dismissed = True
    assert one.take(backlog) is None
    one.set_aside(b"bye", 0.0)
    backlog.push(b"c", 1)
    assert write(one, backlog, 0.0) == PendingWrite(b"bye", True)
    assert one.is_done(backlog.end) and one.take(backlog) is None


def test_a_write_can_end_after_a_reader_was_skipped_ahead() -> None:
    """Skipped events do not come later."""
    backlog = response(b"a")
    one = reader(backlog)
    assert one.take(backlog) == PendingWrite(b"a", False)
    backlog.push(b"b", 1)
    one.skip_to(backlog.end, 0.0)
    one.wrote(backlog.end, 0.0, 0)
    backlog.conclude(b"$")
    assert write(one, backlog, 0.0) == PendingWrite(b"$", True)


def test_a_measure_has_waiting_and_unsent_bytes() -> None:
    """Events of a current write still wait. Events from before the reader came do not count."""
    backlog = response(b"old", b"older")
    one = Reader(START, backlog.end, 0.0)
    backlog.push(b"ab", 1)
    assert one.measure(backlog.end, 0.0, Pressure.TIGHT) == Measure(2, 1, 0, 0.0, None, Pressure.TIGHT)
    one.take(backlog)
    assert one.measure(backlog.end, 0.0, Pressure.NONE)[:2] == (2, 1)
    one.wrote(backlog.end, 1.0, 7)
    assert one.measure(backlog.end, 1.0, Pressure.NONE)[:3] == (0, 0, 7)


def test_a_reader_that_takes_nothing_is_stalled() -> None:
    """The time counts from when it last took something, or had everything."""
    backlog = response()
    one = reader(backlog)
    one.observe(backlog.end, 5.0)
    backlog.push(b"abcd", 1)
    assert one.stalled_s(backlog.end, 7.0) == 2.0
    write(one, backlog, 8.0, unsent_bytes=4)  # the transport took it, the reader did not
    assert one.stalled_s(backlog.end, 9.0) == 4.0
    one.observe(backlog.end, 10.0)
    assert one.stalled_s(backlog.end, 10.0) == 5.0
    one.observe(backlog.end, 11.0, 3)
    assert one.stalled_s(backlog.end, 11.5) == 0.5
    one.observe(backlog.end, 12.0, 0)
    assert one.has_all(backlog.end) and one.stalled_s(backlog.end, 99.0) == 0.0


def test_more_unsent_bytes_do_not_show_that_a_reader_reads() -> None:
    backlog = response(b"ab")
    one = reader(backlog)
    write(one, backlog, 1.0, unsent_bytes=1)
    one.observe(backlog.end, 2.0, 2)
    one.observe(backlog.end, 3.0, 2)
    assert one.stalled_s(backlog.end, 4.0) == 3.0


def test_the_time_behind_counts_from_the_first_judgement() -> None:
    """Later judgements do not change it until the reader has caught up."""
    backlog = response()
    one = reader(backlog)
    one.note_behind(True, 3.0)
    one.note_behind(True, 4.0)
    assert one.measure(backlog.end, 5.0, Pressure.NONE).behind_s == 2.0
    one.note_behind(False, 5.0)
    assert one.measure(backlog.end, 5.0, Pressure.NONE).behind_s is None


def test_a_skipped_reader_gets_its_time_anew() -> None:
    """It has to take its last event."""
    backlog = response(b"a")
    one = reader(backlog)
    one.note_behind(True, 0.0)
    one.skip_to(backlog.end, 9.0)
    backlog.conclude(b"$")
    assert one.stalled_s(backlog.end, 10.0) == 1.0
    assert one.measure(backlog.end, 10.0, Pressure.NONE).behind_s is None


def test_a_reader_is_silent_when_it_has_everything() -> None:
    """A reader with waiting or unsent bytes needs no comment, nor does a dismissed one."""
    backlog = response()
    one = reader(backlog)
    assert one.is_silent(backlog.end, 15.0, 15.0) and not one.is_silent(backlog.end, 14.0, 15.0)
    backlog.push(b"a", 1)
    assert not one.is_silent(backlog.end, 15.0, 15.0)
    write(one, backlog, 15.0, unsent_bytes=1)
    assert not one.is_silent(backlog.end, 40.0, 15.0)
    one.observe(backlog.end, 40.0, 0)
    assert one.is_silent(backlog.end, 40.0, 15.0)
    one.set_aside(b": x\n\n", 40.0)
    assert not one.is_silent(backlog.end, 60.0, 15.0)
    one.is_dismissed = True
    assert not one.is_silent(backlog.end, 99.0, 15.0)


def test_a_comment_postpones_the_next_one() -> None:
    """The time counts from when the comment was set aside."""
    backlog = response()
    one = reader(backlog)
    one.set_aside(b": x\n\n", 15.0)
    write(one, backlog, 16.0)
    assert not one.is_silent(backlog.end, 30.0, 15.0) and one.is_silent(backlog.end, 31.0, 15.0)


def test_the_status_line_is_written_when_nothing_waits() -> None:
    """It is written once. Of several lines only the last one is."""
    backlog = response(b"a")
    one = reader(backlog)
    backlog.status_line = b"1"
    assert write(one, backlog, 0.0) == PendingWrite(b"a1", False)
    assert one.take(backlog) is None
    backlog.status_line = b"2"
    backlog.status_line = b"3"
    assert write(one, backlog, 0.0) == PendingWrite(b"3", False)
    assert one.take(backlog) is None and one.cursor == backlog.end


def test_a_reader_that_is_behind_gets_no_old_status_line() -> None:
    """It gets its events first, and then the current line."""
    backlog = response(b"a" * WRITE_BYTES, b"b")
    one = reader(backlog)
    backlog.status_line = b"!"
    assert write(one, backlog, 0.0).data == b"a" * WRITE_BYTES
    assert write(one, backlog, 0.0).data == b"b!"


def test_a_dismissed_reader_gets_no_status_line() -> None:
    """It gets its last event alone."""
    backlog = response()
    one = reader(backlog)
    backlog.status_line = b"!"
    one.is_dismissed = True
    assert one.take(backlog) is None


def test_the_status_line_comes_before_the_next_event() -> None:
    """A reader that lacks an event, or has the line already, does not get it."""
    backlog = response(b"a")
    ready, behind, told = reader(backlog), reader(backlog), reader(backlog)
    write(ready, backlog, 0.0)
    backlog.status_line = b"!"
    assert write(told, backlog, 0.0).data == b"a!"
    for one in (ready, behind, told):
        one.keep_status_line(backlog, 1.0)
    backlog.status_line = b""
    backlog.push(b"b", 1)
    assert [write(one, backlog, 1.0).data for one in (ready, behind, told)] == [b"!b", b"ab", b"b"]


def test_the_status_line_waits_for_the_end_of_a_write() -> None:
    """A reader with a slow write gets everything too."""
    backlog = response(b"a")
    one = reader(backlog)
    one.take(backlog)
    backlog.status_line = b"!"
    one.keep_status_line(backlog, 1.0)
    backlog.status_line = b""
    one.wrote(backlog.end, 1.0, 0)
    assert write(one, backlog, 1.0).data == b"!"


def test_waiting_bytes_are_unread_and_unsent_ones() -> None:
    """It does not matter in which buffer they are."""
    backlog = response(b"abc", b"de")
    one = reader(backlog)
    assert one.waiting_bytes(backlog.end) == 5
    write(one, backlog, 1.0, unsent_bytes=4)
    assert one.waiting_bytes(backlog.end) == 4


# Backpressure.

RIDS = (1, 2)
PAUSES, PARKS, RESUMES = SetFlow(RIDS, Flow.PAUSE), SetFlow(RIDS, Flow.PARK), SetFlow(RIDS, Flow.RUN)
BY_DEGREES = msgspec.structs.replace(
    POLICIES[PolicyName.PAUSE_PARK_DROP],
    low_events=0,
    high_events=2,
    limit_events=8,
    park_after_s=2.0,
    drop_after_s=5.0,
)
KEPT = Retention(grace_s=30.0, ahead_tokens=3)


class BackpressureDriver:
    """A response whose events have one byte and one token, and its readers."""

    def __init__(self, policy: Policy = BY_DEGREES, retention: Retention | None = KEPT, n_readers: int = 1) -> None:
        self.budget = Budget(max_bytes=100, max_events=100)
        terms = StreamTerms(policy=policy, retention=retention)
        self.backlog = Backlog(self.budget, KEPT.window)
        self.readers = Readers(policy)
        self.backpressure = Backpressure(terms, self.readers, self.backlog, self.budget)
        self.ids = [self.readers.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.backlog.push(b"x", 1)

    def write(self, reader_id: int, now_s: float) -> None:
        reader = self.readers.by_id[reader_id]
        assert reader.take(self.backlog)
        reader.wrote(self.backlog.end, now_s, 0)

    def attended(self, now_s: float, *, may_return: bool = False) -> tuple[Decision, tuple[Effect, ...]]:
        return self.backpressure.attended(RIDS, now_s, may_return=may_return)

    def is_calm(self) -> bool:
        return not self.budget.pressure and self.readers.is_calm(self.backlog.end)


def test_a_slow_reader_pauses_and_then_parks_its_response() -> None:
    """It resumes when the reader has caught up. Each change is sent once."""
    driver = BackpressureDriver()
    assert driver.attended(0.0) == (Decision.RUN, ())
    driver.say(3)
    assert driver.attended(1.0) == (Decision.PAUSE, (PAUSES,)) and driver.backpressure.is_held
    assert driver.attended(2.0) == (Decision.PAUSE, ())
    assert driver.attended(3.0) == (Decision.PARK, (PARKS,))
    assert driver.attended(4.0) == (Decision.PARK, ())
    driver.write(driver.ids[0], 4.5)
    assert driver.attended(4.5) == (Decision.RUN, (RESUMES,)) and not driver.backpressure.is_held


def test_one_reader_of_several_that_is_too_slow_is_dismissed() -> None:
    """The response goes on for the others."""
    driver = BackpressureDriver(n_readers=2)
    slow, fast = driver.ids
    driver.say(9)
    driver.write(fast, 1.0)
    assert driver.attended(1.0) == (Decision.RUN, (EndReader(slow, FinishReason.SLOW_CLIENT),))
    assert driver.readers.by_id[slow].is_dismissed
    assert driver.attended(1.0) == (Decision.RUN, ()), "nobody gets two last words"


@pytest.mark.parametrize("may_return", [True, False])
def test_all_readers_are_dismissed_only_if_the_response_goes_on(may_return: bool) -> None:
    """Else they get its end. In both cases they need not take first what waited."""
    driver = BackpressureDriver(n_readers=2)
    driver.say(9)
    last_words = tuple(EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in driver.ids)
    assert driver.attended(1.0, may_return=may_return) == (Decision.DROP, last_words if may_return else ())
    assert [reader.cursor for reader in driver.readers.by_id.values()] == [driver.backlog.end] * 2
    assert driver.readers.has_listener is not may_return
    assert not driver.backpressure.is_held


def test_no_judgement_is_needed_when_no_reader_can_be_behind() -> None:
    """The readers are within their marks, and memory is not short."""
    driver = BackpressureDriver()
    driver.attended(0.0)
    driver.say(2)
    assert driver.is_calm()
    driver.budget.hold(90)
    assert not driver.is_calm()
    driver.budget.release(90, 1)
    driver.say(1)
    assert not driver.is_calm()


def test_a_detached_response_is_paused_when_it_is_ahead() -> None:
    """Later it is parked. Its backlog does not shrink, so it is not resumed."""
    driver = BackpressureDriver(n_readers=0)
    driver.say(2)
    assert driver.backpressure.detached(RIDS, 0.0) == ()
    driver.say(1)
    assert driver.backpressure.detached(RIDS, 1.0) == (PAUSES,)
    assert driver.backpressure.detached(RIDS, 2.9) == ()
    assert driver.backpressure.detached(RIDS, 3.0) == (PARKS,)
    assert driver.backpressure.detached(RIDS, 9.0) == ()


def test_a_detached_response_stays_paused_if_its_policy_does_not_park() -> None:
    """However long it is paused."""
    driver = BackpressureDriver(POLICIES[PolicyName.PAUSE], n_readers=0)
    driver.say(3)
    assert driver.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert driver.backpressure.detached(RIDS, 1e6) == ()


def test_a_detached_response_needs_memory_and_a_window_to_run() -> None:
    """A full window pauses it too."""
    short = BackpressureDriver(n_readers=0)
    short.budget.hold(90)
    assert short.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert BackpressureDriver(retention=None, n_readers=0).backpressure.detached(RIDS, 0.0) == (PAUSES,)
    full = BackpressureDriver(n_readers=0)
    full.backlog.push(b"x" * KEPT.max_bytes, 0)
    full.budget.release(KEPT.max_bytes, 1)
    assert full.backpressure.detached(RIDS, 0.0) == (PAUSES,)


def test_a_parked_response_is_not_paused_again() -> None:
    """A pause would change nothing."""
    driver = BackpressureDriver()
    driver.say(3)
    driver.attended(1.0)
    assert driver.attended(3.0) == (Decision.PARK, (PARKS,))
    driver.readers.by_id.clear()
    driver.readers.admit(driver.backlog.end, driver.backlog.end, 3.5)
    driver.say(3)
    assert driver.attended(3.5) == (Decision.PAUSE, ())


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["say", "write", "leave", "come"]), st.floats(0.0, 3.0)), max_size=24))
def test_every_resumption_follows_a_pause(course: list[tuple[str, float]]) -> None:
    """A running response is not resumed, and a paused one is not paused again."""
    driver, now_s, runs = BackpressureDriver(), 0.0, True
    for what, after_s in course:
        now_s += after_s
        reader = next(iter(driver.readers.by_id.values()), None)
        if what == "say":
            driver.say(2)
        elif what == "write" and reader is not None and reader.take(driver.backlog):
            reader.wrote(driver.backlog.end, now_s, 0)
        elif what == "leave":
            driver.readers.by_id.clear()
        elif what == "come" and reader is None:
            driver.readers.admit(driver.backlog.end, driver.backlog.end, now_s)
        is_read = bool(driver.readers.by_id)
        effects = driver.attended(now_s)[1] if is_read else driver.backpressure.detached(RIDS, now_s)
        for effect in effects:
            assert isinstance(effect, SetFlow)
            assert (effect.flow is Flow.RUN) is not runs or effect.flow is Flow.PARK
            runs = effect.flow is Flow.RUN
    assert runs is not driver.backpressure.is_held
