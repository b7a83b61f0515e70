"""Of several readers the mildest decision counts, and each is judged for itself."""

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


class Hall:
    """A response and its readers; every event has one byte."""

    def __init__(self, policy: Policy = PAUSE, n_readers: int = 1) -> None:
        budget = Budget(max_bytes=1 << 20, max_events=1 << 10)
        self.replay = Backlog(budget, Window(1 << 20, 1 << 10))
        self.readers = Readers(policy)
        self.ids = [self.readers.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.replay.push(b"x", 1)

    def write(self, reader_id: ReaderId, now_s: float = 0.0, unsent_bytes: int = 0) -> None:
        reader = self.readers.by_id[reader_id]
        assert reader.take(self.replay)
        reader.wrote(self.replay.end, now_s, unsent_bytes)

    def judge(self, now_s: float = 0.0, pressure: Pressure = Pressure.NONE) -> tuple[Decision, list[ReaderId]]:
        return self.readers.judge(self.replay.end, now_s, pressure)

    def is_calm(self) -> bool:
        return self.readers.is_calm(self.replay.end)


def test_it_flows_without_anybody() -> None:
    """No reader holds nothing up, and everything was got by everyone."""
    hall = Hall(n_readers=0)
    hall.say(9)
    assert hall.judge() == (Decision.RUN, [])
    assert not hall.readers.has_listener
    assert hall.readers.slowest(hall.replay.end) == hall.replay.end
    assert hall.readers.is_done(hall.replay.end)


def test_it_flows_while_one_of_two_keeps_up() -> None:
    """A slow reader holds nobody up but itself."""
    hall = Hall(n_readers=2)
    hall.say(3)
    hall.write(2)
    assert hall.judge() == (Decision.RUN, [])
    assert hall.readers.slowest(hall.replay.end) == START
    hall.say(3)
    assert hall.judge() == (Decision.PAUSE, [1])


def test_who_is_dismissed_is_not_judged() -> None:
    """Nor waited for."""
    hall = Hall(n_readers=2)
    hall.say(5)
    hall.write(2)
    assert hall.judge() == (Decision.RUN, [1])
    hall.readers.skip([1], hall.replay.end, 0.0)
    hall.readers.dismiss([1])
    assert hall.judge() == (Decision.RUN, [])
    assert hall.readers.slowest(hall.replay.end) == hall.replay.end
    were_listening = hall.readers.has_listener
    del hall.readers.by_id[2]
    assert (were_listening, hall.readers.has_listener) == (True, False)
    hall.say(1)
    assert hall.readers.slowest(hall.replay.end) == hall.replay.end


def test_a_reader_may_be_written_an_event_that_it_did_not_take() -> None:
    """It has everything then, and its transport may hold some of it."""
    hall = Hall()
    hall.say(1)
    hall.write(1)
    (reader,) = hall.readers.by_id.values()
    end = Cursor(2, 8, 2)
    reader.wrote(end, 3.0, 4, n_passed_bytes=7)
    assert (reader.cursor, reader.is_done(end), reader.waiting_bytes(end), reader.wrote_s) == (end, True, 4, 3.0)


def test_an_only_reader_is_the_slowest() -> None:
    """Its place is where everything before was got."""
    hall = Hall()
    hall.say(2)
    assert hall.readers.slowest(hall.replay.end) == START
    hall.write(1)
    assert hall.readers.slowest(hall.replay.end) == hall.replay.end


def test_it_is_calm_until_somebody_may_be_behind() -> None:
    """After it was judged, up to the first high-water mark; a newcomer must be judged too."""
    hall = Hall()
    assert not hall.is_calm()
    hall.judge()
    hall.say(2)
    assert hall.is_calm()
    hall.say(1)
    assert not hall.is_calm()
    hall.judge()
    hall.write(1)
    assert not hall.is_calm()  # somebody was behind when it was judged
    assert not hall.readers.is_at_ease
    hall.judge()
    assert hall.is_calm()
    was_at_ease = hall.readers.is_at_ease
    hall.readers.admit(START, hall.replay.end, 0.0)
    assert not hall.is_calm()
    assert (was_at_ease, hall.readers.is_at_ease) == (True, False)


def test_bytes_end_the_calm_too() -> None:
    """Those that are unsent count."""
    hall = Hall()
    hall.say(1)
    hall.write(1, unsent_bytes=20)
    hall.judge()
    assert hall.is_calm()
    hall.say(1)
    assert not hall.is_calm()


def test_a_reader_stays_behind_from_one_judgement_to_the_next() -> None:
    """Between the marks the past counts."""
    hall = Hall()
    hall.say(3)
    assert hall.judge(now_s=1.0) == (Decision.PAUSE, [])
    hall.replay.advance(START, START)
    hall.readers.by_id[1].cursor = hall.replay.read(START, 1)[1]
    assert hall.judge(now_s=2.0) == (Decision.PAUSE, [])
    assert hall.readers.by_id[1].measure(hall.replay.end, 3.0, Pressure.NONE).behind_s == 2.0


def test_pressure_is_passed_on() -> None:
    """What is above the low mark counts then."""
    hall = Hall()
    hall.say(2)
    assert hall.judge(pressure=Pressure.TIGHT) == (Decision.PAUSE, [])
    assert hall.judge(pressure=Pressure.FULL) == (Decision.DROP, [1])


def test_who_does_not_take_the_rest_stalls() -> None:
    """Where the response is over, or for one that was dismissed; by the timeout of the policy."""
    hall, patient = Hall(n_readers=2), Hall(PATIENT)
    hall.say(1)
    patient.say(1)
    assert hall.readers.stalled(hall.replay.end, 10.0, is_over=True) == [1, 2]
    assert hall.readers.stalled(hall.replay.end, 9.0, is_over=True) == []
    assert hall.readers.stalled(hall.replay.end, 10.0, is_over=False) == []
    assert patient.readers.stalled(patient.replay.end, 1e4, is_over=True) == []
    hall.readers.dismiss([2])
    hall.readers.by_id[2].set_aside(b"bye", 0.0)
    assert hall.readers.stalled(hall.replay.end, 10.0, is_over=False) == [2]


def test_what_transports_hold_is_noted() -> None:
    """Where it is told; elsewhere it is what it was."""
    hall = Hall(n_readers=2)
    hall.say(1)
    hall.write(1, unsent_bytes=1)
    hall.write(2, unsent_bytes=1)
    hall.readers.observe(hall.replay.end, 5.0, {1: 0})
    assert hall.readers.stalled(hall.replay.end, 10.0, is_over=True) == [2]


def test_silence_is_told_of_listeners() -> None:
    """Who has everything and heard nothing for long."""
    hall = Hall(n_readers=3)
    hall.say(1)
    hall.write(1, now_s=1.0)
    hall.write(3, now_s=1.0)
    hall.readers.dismiss([3])
    assert hall.readers.silent(hall.replay.end, 16.0, 15.0) == [1]
    assert not hall.readers.is_done(hall.replay.end)


def test_it_is_quiet_until_the_first_has_been_silent_for_long() -> None:
    """For ever where that is no matter, or nobody is there; not at all while one lacks something."""
    hall = Hall(n_readers=2)
    end = hall.replay.end
    assert hall.readers.quiet_until_s(end, 15.0) == 15.0
    assert hall.readers.quiet_until_s(end, 0.0) == math.inf
    assert Hall(n_readers=0).readers.quiet_until_s(end, 15.0) == math.inf
    hall.say(1)
    hall.write(hall.ids[0], now_s=3.0)
    assert hall.readers.quiet_until_s(hall.replay.end, 15.0) == 0.0
    hall.write(hall.ids[1], now_s=4.0)
    assert hall.readers.quiet_until_s(hall.replay.end, 15.0) == 18.0


def test_notice_is_past_when_an_event_is_about_to_come() -> None:
    """All that have everything get it still, each in its turn."""
    hall = Hall(n_readers=2)
    hall.replay.status_line = b"!"
    hall.readers.remove_status_line(hall.replay, 1.0)
    assert hall.replay.status_line == b""
    hall.say(1)
    batches = [hall.readers.by_id[reader_id].take(hall.replay) for reader_id in hall.ids]
    assert [batch and batch.data for batch in batches] == [b"!x", b"!x"]


def test_who_has_much_left_and_takes_nothing_or_has_had_its_time_hoards() -> None:
    """One with little left does not, nor one that came lately and takes some."""
    policy = msgspec.structs.replace(POLICIES[PolicyName.DROP], **MARKS, limit_bytes=40, drop_after_s=5.0)
    hall = Hall(policy, n_readers=2)
    stopped, done = hall.ids
    hall.say(11)
    hall.write(done)
    end = hall.replay.end
    assert hall.readers.hoarding(end, 2.0, 0.0) == []
    assert hall.readers.hoarding(end, 2.1, 0.0) == [stopped]
    late = hall.readers.admit(START, end, 3.0)
    hall.readers.observe(end, 8.0, {})
    for reader in hall.readers.by_id.values():
        reader.skip_to(START, 8.0)
    assert hall.readers.hoarding(end, 8.0, 4.0) == []
    assert hall.readers.hoarding(end, 8.5, 3.1) == [stopped, done, late]
    hall.readers.dismiss([stopped, done, late])
    assert hall.readers.hoarding(end, 99.0, 3.1) == []


def test_without_a_time_to_drop_a_reader_has_the_usual_one() -> None:
    """Half a minute."""
    hall = Hall(PAUSE)
    hall.say(11)
    end = hall.replay.end
    for reader in hall.readers.by_id.values():
        reader.skip_to(START, 30.0)
    assert (hall.readers.hoarding(end, 30.0, 0.0), hall.readers.hoarding(end, 30.1, 0.0)) == ([], hall.ids)


# One reader.


def response(*frames: bytes) -> Backlog:
    replay = Backlog(Budget(max_bytes=1 << 20, max_events=1 << 10), Window(1 << 20, 1 << 10))
    for frame in frames:
        replay.push(frame, 1)
    return replay


def reader(replay: Backlog, now_s: float = 0.0) -> Reader:
    """One that came before anything was said."""
    return Reader(START, START, now_s)


def write(one: Reader, replay: Backlog, now_s: float, unsent_bytes: int = 0) -> PendingWrite:
    batch = one.take(replay)
    assert batch is not None
    one.wrote(replay.end, now_s, unsent_bytes)
    return batch


def test_everything_that_waits_is_taken_for_one_write() -> None:
    """Nothing more is taken while it is written, nor when nothing waits."""
    replay = response(b"a", b"b")
    one = reader(replay)
    assert one.take(replay) == PendingWrite(b"ab", False)
    replay.push(b"c", 1)
    assert one.take(replay) is None
    one.wrote(replay.end, 1.0, 0)
    assert one.cursor.event_id == 2
    assert write(one, replay, 2.0) == PendingWrite(b"c", False)
    assert one.take(replay) is None


def test_the_last_event_makes_the_last_batch() -> None:
    """Not one before it, where a write does not take all."""
    replay = response(b"a" * WRITE_BYTES)
    replay.conclude(b"$")
    one = reader(replay)
    assert write(one, replay, 0.0) == PendingWrite(b"a" * WRITE_BYTES, False, True)
    assert not one.is_done(replay.end)
    assert write(one, replay, 0.0) == PendingWrite(b"$", True)
    assert one.is_done(replay.end)


def test_nothing_can_be_written_that_was_not_taken() -> None:
    """A writer that says so twice is a bug."""
    replay = response()
    with pytest.raises(InvariantError, match="never taken"):
        reader(replay).wrote(replay.end, 0.0, 0)


def test_what_is_set_aside_goes_out_before_what_waits() -> None:
    """With it, or alone."""
    replay = response(b"a")
    one = reader(replay)
    one.set_aside(b": hello\n\n", 0.0)
    assert write(one, replay, 0.0).data == b": hello\n\na"
    one.set_aside(b": again\n\n", 0.0)
    assert write(one, replay, 0.0) == PendingWrite(b": again\n\n", False)
    assert one.cursor == replay.end


def test_a_dismissed_reader_gets_its_last_word_alone() -> None:
    """In place of what waits for it, also of a comment."""
    replay = response(b"a", b"b")
    one = reader(replay)
    one.set_aside(b": comment\n\n", 0.0)
    one.skip_to(replay.end, 0.0)
    one.is_dismissed = True
    assert one.take(replay) is None
    one.set_aside(b"bye", 0.0)
    replay.push(b"c", 1)
    assert write(one, replay, 0.0) == PendingWrite(b"bye", True)
    assert one.is_done(replay.end) and one.take(replay) is None


def test_a_reader_that_skips_while_it_is_written_goes_on_behind_it() -> None:
    """What is under way can be finished; what was left out does not come after all."""
    replay = response(b"a")
    one = reader(replay)
    assert one.take(replay) == PendingWrite(b"a", False)
    replay.push(b"b", 1)
    one.skip_to(replay.end, 0.0)
    one.wrote(replay.end, 0.0, 0)
    replay.conclude(b"$")
    assert write(one, replay, 0.0) == PendingWrite(b"$", True)


def test_what_waits_and_what_is_unsent_is_measured() -> None:
    """What is being written still waits; what was there before it came does not count."""
    replay = response(b"old", b"older")
    one = Reader(START, replay.end, 0.0)
    replay.push(b"ab", 1)
    assert one.measure(replay.end, 0.0, Pressure.TIGHT) == Measure(2, 1, 0, 0.0, None, Pressure.TIGHT)
    one.take(replay)
    assert one.measure(replay.end, 0.0, Pressure.NONE)[:2] == (2, 1)
    one.wrote(replay.end, 1.0, 7)
    assert one.measure(replay.end, 1.0, Pressure.NONE)[:3] == (0, 0, 7)


def test_a_reader_stalls_when_it_takes_nothing_of_what_waits() -> None:
    """The time counts from when it last took something, or last had everything."""
    replay = response()
    one = reader(replay)
    one.observe(replay.end, 5.0)
    replay.push(b"abcd", 1)
    assert one.stalled_s(replay.end, 7.0) == 2.0
    write(one, replay, 8.0, unsent_bytes=4)  # the transport took it, the reader did not
    assert one.stalled_s(replay.end, 9.0) == 4.0
    one.observe(replay.end, 10.0)
    assert one.stalled_s(replay.end, 10.0) == 5.0
    one.observe(replay.end, 11.0, 3)
    assert one.stalled_s(replay.end, 11.5) == 0.5
    one.observe(replay.end, 12.0, 0)
    assert one.has_all(replay.end) and one.stalled_s(replay.end, 99.0) == 0.0


def test_bytes_that_come_back_are_no_sign_of_life() -> None:
    """More may be unsent than before without a reader that took anything."""
    replay = response(b"ab")
    one = reader(replay)
    write(one, replay, 1.0, unsent_bytes=1)
    one.observe(replay.end, 2.0, 2)
    one.observe(replay.end, 3.0, 2)
    assert one.stalled_s(replay.end, 4.0) == 3.0


def test_it_is_behind_since_it_fell_behind() -> None:
    """However often that is noted; and not any more when it is not."""
    replay = response()
    one = reader(replay)
    one.note_behind(True, 3.0)
    one.note_behind(True, 4.0)
    assert one.measure(replay.end, 5.0, Pressure.NONE).behind_s == 2.0
    one.note_behind(False, 5.0)
    assert one.measure(replay.end, 5.0, Pressure.NONE).behind_s is None


def test_it_has_its_time_anew_when_it_skips() -> None:
    """To take what it gets instead."""
    replay = response(b"a")
    one = reader(replay)
    one.note_behind(True, 0.0)
    one.skip_to(replay.end, 9.0)
    replay.conclude(b"$")
    assert one.stalled_s(replay.end, 10.0) == 1.0
    assert one.measure(replay.end, 10.0, Pressure.NONE).behind_s is None


def test_it_is_silent_when_it_has_all_and_was_written_nothing() -> None:
    """Something that waits, or is unsent, needs no comment; nor does one that was dismissed."""
    replay = response()
    one = reader(replay)
    assert one.is_silent(replay.end, 15.0, 15.0) and not one.is_silent(replay.end, 14.0, 15.0)
    replay.push(b"a", 1)
    assert not one.is_silent(replay.end, 15.0, 15.0)
    write(one, replay, 15.0, unsent_bytes=1)
    assert not one.is_silent(replay.end, 40.0, 15.0)
    one.observe(replay.end, 40.0, 0)
    assert one.is_silent(replay.end, 40.0, 15.0)
    one.set_aside(b": x\n\n", 40.0)
    assert not one.is_silent(replay.end, 60.0, 15.0)
    one.is_dismissed = True
    assert not one.is_silent(replay.end, 99.0, 15.0)


def test_a_comment_postpones_the_next_one() -> None:
    """From when it was asked for."""
    replay = response()
    one = reader(replay)
    one.set_aside(b": x\n\n", 15.0)
    write(one, replay, 16.0)
    assert not one.is_silent(replay.end, 30.0, 15.0) and one.is_silent(replay.end, 31.0, 15.0)


def test_notice_is_told_when_nothing_waits() -> None:
    """Once; a later one too, and of several only the last."""
    replay = response(b"a")
    one = reader(replay)
    replay.status_line = b"1"
    assert write(one, replay, 0.0) == PendingWrite(b"a1", False)
    assert one.take(replay) is None
    replay.status_line = b"2"
    replay.status_line = b"3"
    assert write(one, replay, 0.0) == PendingWrite(b"3", False)
    assert one.take(replay) is None and one.cursor == replay.end


def test_notice_is_dropped_when_the_reader_is_behind() -> None:
    """What it has missed comes first; what holds when it has caught up comes after that."""
    replay = response(b"a" * WRITE_BYTES, b"b")
    one = reader(replay)
    replay.status_line = b"!"
    assert write(one, replay, 0.0).data == b"a" * WRITE_BYTES
    assert write(one, replay, 0.0).data == b"b!"


def test_notice_is_not_told_when_the_reader_was_dismissed() -> None:
    """It gets its last word alone."""
    replay = response()
    one = reader(replay)
    replay.status_line = b"!"
    one.is_dismissed = True
    assert one.take(replay) is None


def test_notice_goes_out_before_the_next_event_when_it_is_held() -> None:
    """For a reader that has everything else; one that lacks an event, or has the notice, gets none."""
    replay = response(b"a")
    ready, behind, told = reader(replay), reader(replay), reader(replay)
    write(ready, replay, 0.0)
    replay.status_line = b"!"
    assert write(told, replay, 0.0).data == b"a!"
    for one in (ready, behind, told):
        one.keep_status_line(replay, 1.0)
    replay.status_line = b""
    replay.push(b"b", 1)
    assert [write(one, replay, 1.0).data for one in (ready, behind, told)] == [b"!b", b"ab", b"b"]


def test_notice_is_held_when_the_last_event_is_being_written() -> None:
    """A reader that is slow to take a write gets everything too."""
    replay = response(b"a")
    one = reader(replay)
    one.take(replay)
    replay.status_line = b"!"
    one.keep_status_line(replay, 1.0)
    replay.status_line = b""
    one.wrote(replay.end, 1.0, 0)
    assert write(one, replay, 1.0).data == b"!"


def test_what_waits_is_what_is_unread_and_what_is_unsent() -> None:
    """Whichever buffer it lies in."""
    replay = response(b"abc", b"de")
    one = reader(replay)
    assert one.waiting_bytes(replay.end) == 5
    write(one, replay, 1.0, unsent_bytes=4)
    assert one.waiting_bytes(replay.end) == 4


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


class Sluice:
    """A response whose events have one byte and one token, and its readers."""

    def __init__(self, policy: Policy = BY_DEGREES, retention: Retention | None = KEPT, n_readers: int = 1) -> None:
        self.budget = Budget(max_bytes=100, max_events=100)
        terms = StreamTerms(policy=policy, retention=retention)
        self.replay = Backlog(self.budget, KEPT.window)
        self.readers = Readers(policy)
        self.backpressure = Backpressure(terms, self.readers, self.replay, self.budget)
        self.ids = [self.readers.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.replay.push(b"x", 1)

    def write(self, reader_id: int, now_s: float) -> None:
        reader = self.readers.by_id[reader_id]
        assert reader.take(self.replay)
        reader.wrote(self.replay.end, now_s, 0)

    def attended(self, now_s: float, *, may_return: bool = False) -> tuple[Decision, tuple[Effect, ...]]:
        return self.backpressure.attended(RIDS, now_s, may_return=may_return)

    def is_calm(self) -> bool:
        return not self.budget.pressure and self.readers.is_calm(self.replay.end)


def test_a_reader_that_is_behind_costs_its_response_by_degrees() -> None:
    """Paused, parked, and resumed when it has caught up; each is told once."""
    sluice = Sluice()
    assert sluice.attended(0.0) == (Decision.RUN, ())
    sluice.say(3)
    assert sluice.attended(1.0) == (Decision.PAUSE, (PAUSES,)) and sluice.backpressure.is_held
    assert sluice.attended(2.0) == (Decision.PAUSE, ())
    assert sluice.attended(3.0) == (Decision.PARK, (PARKS,))
    assert sluice.attended(4.0) == (Decision.PARK, ())
    sluice.write(sluice.ids[0], 4.5)
    assert sluice.attended(4.5) == (Decision.RUN, (RESUMES,)) and not sluice.backpressure.is_held


def test_one_that_is_too_slow_among_others_gets_its_last_word_alone() -> None:
    """The response flows on for those that keep up."""
    sluice = Sluice(n_readers=2)
    slow, fast = sluice.ids
    sluice.say(9)
    sluice.write(fast, 1.0)
    assert sluice.attended(1.0) == (Decision.RUN, (EndReader(slow, FinishReason.SLOW_CLIENT),))
    assert sluice.readers.by_id[slow].is_dismissed
    assert sluice.attended(1.0) == (Decision.RUN, ()), "nobody gets two last words"


@pytest.mark.parametrize("may_return", [True, False])
def test_all_get_their_last_word_alone_only_when_the_response_goes_on(may_return: bool) -> None:
    """Else its end is the last word; either way, nobody has to take first what waited."""
    sluice = Sluice(n_readers=2)
    sluice.say(9)
    last_words = tuple(EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in sluice.ids)
    assert sluice.attended(1.0, may_return=may_return) == (Decision.DROP, last_words if may_return else ())
    assert [reader.cursor for reader in sluice.readers.by_id.values()] == [sluice.replay.end] * 2
    assert sluice.readers.has_listener is not may_return
    assert not sluice.backpressure.is_held


def test_it_is_calm_when_nobody_can_have_fallen_behind() -> None:
    """Within what the readers may still be sent, and while memory is not short."""
    sluice = Sluice()
    sluice.attended(0.0)
    sluice.say(2)
    assert sluice.is_calm()
    sluice.budget.hold(90)
    assert not sluice.is_calm()
    sluice.budget.release(90, 1)
    sluice.say(1)
    assert not sluice.is_calm()


def test_what_nobody_reads_is_paused_when_it_is_ahead() -> None:
    """And parked when it was held for long; what waits does not get less, so it is not resumed."""
    sluice = Sluice(n_readers=0)
    sluice.say(2)
    assert sluice.backpressure.detached(RIDS, 0.0) == ()
    sluice.say(1)
    assert sluice.backpressure.detached(RIDS, 1.0) == (PAUSES,)
    assert sluice.backpressure.detached(RIDS, 2.9) == ()
    assert sluice.backpressure.detached(RIDS, 3.0) == (PARKS,)
    assert sluice.backpressure.detached(RIDS, 9.0) == ()


def test_what_nobody_reads_stays_paused_when_its_policy_does_not_park() -> None:
    """However long."""
    sluice = Sluice(POLICIES[PolicyName.PAUSE], n_readers=0)
    sluice.say(3)
    assert sluice.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert sluice.backpressure.detached(RIDS, 1e6) == ()


def test_nothing_runs_ahead_when_memory_is_short_or_nothing_is_kept() -> None:
    """Nor when the window is full."""
    short = Sluice(n_readers=0)
    short.budget.hold(90)
    assert short.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert Sluice(retention=None, n_readers=0).backpressure.detached(RIDS, 0.0) == (PAUSES,)
    full = Sluice(n_readers=0)
    full.replay.push(b"x" * KEPT.max_bytes, 0)
    full.budget.release(KEPT.max_bytes, 1)
    assert full.backpressure.detached(RIDS, 0.0) == (PAUSES,)


def test_what_was_parked_is_not_paused_when_another_reader_falls_behind() -> None:
    """A pause would change nothing."""
    sluice = Sluice()
    sluice.say(3)
    sluice.attended(1.0)
    assert sluice.attended(3.0) == (Decision.PARK, (PARKS,))
    sluice.readers.by_id.clear()
    sluice.readers.admit(sluice.replay.end, sluice.replay.end, 3.5)
    sluice.say(3)
    assert sluice.attended(3.5) == (Decision.PAUSE, ())


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["say", "write", "leave", "come"]), st.floats(0.0, 3.0)), max_size=24))
def test_resumptions_alternate_with_what_they_undo(course: list[tuple[str, float]]) -> None:
    """No resumption of what flows, no second pause of what is held."""
    sluice, now_s, runs = Sluice(), 0.0, True
    for what, after_s in course:
        now_s += after_s
        reader = next(iter(sluice.readers.by_id.values()), None)
        if what == "say":
            sluice.say(2)
        elif what == "write" and reader is not None and reader.take(sluice.replay):
            reader.wrote(sluice.replay.end, now_s, 0)
        elif what == "leave":
            sluice.readers.by_id.clear()
        elif what == "come" and reader is None:
            sluice.readers.admit(sluice.replay.end, sluice.replay.end, now_s)
        is_read = bool(sluice.readers.by_id)
        effects = sluice.attended(now_s)[1] if is_read else sluice.backpressure.detached(RIDS, now_s)
        for effect in effects:
            assert isinstance(effect, SetFlow)
            assert (effect.flow is Flow.RUN) is not runs or effect.flow is Flow.PARK
            runs = effect.flow is Flow.RUN
    assert runs is not sluice.backpressure.is_held
