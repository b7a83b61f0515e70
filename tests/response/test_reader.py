"""How far a reader has got, and since when it takes nothing."""

from __future__ import annotations

import pytest

from sluiceway.errors import InvariantError
from sluiceway.response.budget import Budget
from sluiceway.response.policy import Measure, Pressure
from sluiceway.response.reader import WRITE_BYTES, Batch, Reader
from sluiceway.response.replay import START, Replay, Window


def response(*frames: bytes) -> Replay:
    replay = Replay(Budget(max_bytes=1 << 20, max_events=1 << 10), Window(1 << 20, 1 << 10))
    for frame in frames:
        replay.push(frame, 1)
    return replay


def reader(replay: Replay, now_s: float = 0.0) -> Reader:
    """One that came before anything was said."""
    return Reader(START, START, now_s)


def write(one: Reader, replay: Replay, now_s: float, unsent_bytes: int = 0) -> Batch:
    batch = one.take(replay)
    assert batch is not None
    one.wrote(replay.end, now_s, unsent_bytes)
    return batch


def test_everything_that_waits_is_taken_for_one_write() -> None:
    """Nothing more is taken while it is written, nor when nothing waits."""
    replay = response(b"a", b"b")
    one = reader(replay)
    assert one.take(replay) == Batch(b"ab", False)
    replay.push(b"c", 1)
    assert one.take(replay) is None
    one.wrote(replay.end, 1.0, 0)
    assert one.place.event_id == 2
    assert write(one, replay, 2.0) == Batch(b"c", False)
    assert one.take(replay) is None


def test_the_last_event_makes_the_last_batch() -> None:
    """Not one before it, where a write does not take all."""
    replay = response(b"a" * WRITE_BYTES)
    replay.conclude(b"$")
    one = reader(replay)
    assert write(one, replay, 0.0) == Batch(b"a" * WRITE_BYTES, False, True)
    assert not one.is_done(replay.end)
    assert write(one, replay, 0.0) == Batch(b"$", True)
    assert one.is_done(replay.end)


def test_nothing_can_be_written_that_was_not_taken() -> None:
    """A writer that says so twice is a bug."""
    replay = response()
    with pytest.raises(InvariantError, match="nobody took"):
        reader(replay).wrote(replay.end, 0.0, 0)


def test_what_is_set_aside_goes_out_before_what_waits() -> None:
    """With it, or alone."""
    replay = response(b"a")
    one = reader(replay)
    one.set_aside(b": hello\n\n", 0.0)
    assert write(one, replay, 0.0).data == b": hello\n\na"
    one.set_aside(b": again\n\n", 0.0)
    assert write(one, replay, 0.0) == Batch(b": again\n\n", False)
    assert one.place == replay.end


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
    assert write(one, replay, 0.0) == Batch(b"bye", True)
    assert one.is_done(replay.end) and one.take(replay) is None


def test_a_reader_that_skips_while_it_is_written_goes_on_behind_it() -> None:
    """What is under way can be finished; what was left out does not come after all."""
    replay = response(b"a")
    one = reader(replay)
    assert one.take(replay) == Batch(b"a", False)
    replay.push(b"b", 1)
    one.skip_to(replay.end, 0.0)
    one.wrote(replay.end, 0.0, 0)
    replay.conclude(b"$")
    assert write(one, replay, 0.0) == Batch(b"$", True)


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
    replay.notice = b"1"
    assert write(one, replay, 0.0) == Batch(b"a1", False)
    assert one.take(replay) is None
    replay.notice = b"2"
    replay.notice = b"3"
    assert write(one, replay, 0.0) == Batch(b"3", False)
    assert one.take(replay) is None and one.place == replay.end


def test_notice_is_dropped_when_the_reader_is_behind() -> None:
    """What it has missed comes first; what holds when it has caught up comes after that."""
    replay = response(b"a" * WRITE_BYTES, b"b")
    one = reader(replay)
    replay.notice = b"!"
    assert write(one, replay, 0.0).data == b"a" * WRITE_BYTES
    assert write(one, replay, 0.0).data == b"b!"


def test_notice_is_not_told_when_the_reader_was_dismissed() -> None:
    """It gets its last word alone."""
    replay = response()
    one = reader(replay)
    replay.notice = b"!"
    one.is_dismissed = True
    assert one.take(replay) is None


def test_notice_goes_out_before_the_next_event_when_it_is_held() -> None:
    """For a reader that has everything else; one that lacks an event, or has the notice, gets none."""
    replay = response(b"a")
    ready, behind, told = reader(replay), reader(replay), reader(replay)
    write(ready, replay, 0.0)
    replay.notice = b"!"
    assert write(told, replay, 0.0).data == b"a!"
    for one in (ready, behind, told):
        one.hold_notice(replay, 1.0)
    replay.notice = b""
    replay.push(b"b", 1)
    assert [write(one, replay, 1.0).data for one in (ready, behind, told)] == [b"!b", b"ab", b"b"]


def test_notice_is_held_when_the_last_event_is_being_written() -> None:
    """Whoever takes its time for a write has everything all the same."""
    replay = response(b"a")
    one = reader(replay)
    one.take(replay)
    replay.notice = b"!"
    one.hold_notice(replay, 1.0)
    replay.notice = b""
    one.wrote(replay.end, 1.0, 0)
    assert write(one, replay, 1.0).data == b"!"


def test_what_waits_is_what_is_unread_and_what_is_unsent() -> None:
    """Whichever buffer it lies in."""
    replay = response(b"abc", b"de")
    one = reader(replay)
    assert one.waiting_bytes(replay.end) == 5
    write(one, replay, 1.0, unsent_bytes=4)
    assert one.waiting_bytes(replay.end) == 4
