"""Of several readers the mildest decision counts, and each is judged for itself."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sluiceway.response.audience import Audience
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.policy import POLICIES, Decision, Policy, PolicyName, Pressure
from sluiceway.response.replay import START, Replay, Window

MARKS: dict[str, Any] = {"low_events": 1, "high_events": 2, "limit_events": 4, "low_bytes": 10, "high_bytes": 20}
PAUSE = msgspec.structs.replace(POLICIES[PolicyName.PAUSE], **MARKS, stall_timeout_s=9.0)
PATIENT = msgspec.structs.replace(POLICIES[PolicyName.UNBOUNDED], stall_timeout_s=20_000.0)


class Hall:
    """A response and its audience; every event has one byte."""

    def __init__(self, policy: Policy = PAUSE, n_readers: int = 1) -> None:
        budget = Budget(max_bytes=1 << 20, max_events=1 << 10)
        self.replay = Replay(budget, Window(1 << 20, 1 << 10))
        self.audience = Audience(policy)
        self.ids = [self.audience.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.replay.push(b"x", 1)

    def write(self, reader_id: ReaderId, now_s: float = 0.0, unsent_bytes: int = 0) -> None:
        reader = self.audience.readers[reader_id]
        assert reader.take(self.replay)
        reader.wrote(self.replay.end, now_s, unsent_bytes)

    def judge(self, now_s: float = 0.0, pressure: Pressure = Pressure.NONE) -> tuple[Decision, list[ReaderId]]:
        return self.audience.judge(self.replay.end, now_s, pressure)

    def is_calm(self) -> bool:
        return self.audience.is_calm(self.replay.end)


def test_it_flows_without_anybody() -> None:
    """An empty audience holds nothing up, and everything was got by everyone."""
    hall = Hall(n_readers=0)
    hall.say(9)
    assert hall.judge() == (Decision.FLOW, [])
    assert not hall.audience.listens
    assert hall.audience.slowest(hall.replay.end) == hall.replay.end
    assert hall.audience.is_done(hall.replay.end)


def test_it_flows_while_one_of_two_keeps_up() -> None:
    """A slow reader holds nobody up but itself."""
    hall = Hall(n_readers=2)
    hall.say(3)
    hall.write(2)
    assert hall.judge() == (Decision.FLOW, [])
    assert hall.audience.slowest(hall.replay.end) == START
    hall.say(3)
    assert hall.judge() == (Decision.PAUSE, [1])


def test_who_is_dismissed_is_not_judged() -> None:
    """Nor waited for."""
    hall = Hall(n_readers=2)
    hall.say(5)
    hall.write(2)
    assert hall.judge() == (Decision.FLOW, [1])
    hall.audience.skip([1], hall.replay.end, 0.0)
    hall.audience.dismiss([1])
    assert hall.judge() == (Decision.FLOW, [])
    assert hall.audience.slowest(hall.replay.end) == hall.replay.end
    were_listening = hall.audience.listens
    del hall.audience.readers[2]
    assert (were_listening, hall.audience.listens) == (True, False)
    hall.say(1)
    assert hall.audience.slowest(hall.replay.end) == hall.replay.end


def test_an_only_reader_is_the_slowest() -> None:
    """Its place is where everything before was got."""
    hall = Hall()
    hall.say(2)
    assert hall.audience.slowest(hall.replay.end) == START
    hall.write(1)
    assert hall.audience.slowest(hall.replay.end) == hall.replay.end


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
    assert not hall.audience.is_at_ease
    hall.judge()
    assert hall.is_calm()
    was_at_ease = hall.audience.is_at_ease
    hall.audience.admit(START, hall.replay.end, 0.0)
    assert not hall.is_calm()
    assert (was_at_ease, hall.audience.is_at_ease) == (True, False)


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
    hall.replay.delivered(START)
    hall.audience.readers[1].place = hall.replay.read(START, 1)[1]
    assert hall.judge(now_s=2.0) == (Decision.PAUSE, [])
    assert hall.audience.readers[1].measure(hall.replay.end, 3.0, Pressure.NONE).behind_s == 2.0


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
    assert hall.audience.stalled(hall.replay.end, 10.0, is_over=True) == [1, 2]
    assert hall.audience.stalled(hall.replay.end, 9.0, is_over=True) == []
    assert hall.audience.stalled(hall.replay.end, 10.0, is_over=False) == []
    assert patient.audience.stalled(patient.replay.end, 1e4, is_over=True) == []
    hall.audience.dismiss([2])
    hall.audience.readers[2].set_aside(b"bye", 0.0)
    assert hall.audience.stalled(hall.replay.end, 10.0, is_over=False) == [2]


def test_what_transports_hold_is_noted() -> None:
    """Where it is told; elsewhere it is what it was."""
    hall = Hall(n_readers=2)
    hall.say(1)
    hall.write(1, unsent_bytes=1)
    hall.write(2, unsent_bytes=1)
    hall.audience.observe(hall.replay.end, 5.0, {1: 0})
    assert hall.audience.stalled(hall.replay.end, 10.0, is_over=True) == [2]


def test_silence_is_told_of_listeners() -> None:
    """Who has everything and heard nothing for long."""
    hall = Hall(n_readers=3)
    hall.say(1)
    hall.write(1, now_s=1.0)
    hall.write(3, now_s=1.0)
    hall.audience.dismiss([3])
    assert hall.audience.silent(hall.replay.end, 16.0, 15.0) == [1]
    assert not hall.audience.is_done(hall.replay.end)


def test_it_is_quiet_until_the_first_has_been_silent_for_long() -> None:
    """For ever where that is no matter, or nobody is there; not at all while one lacks something."""
    hall = Hall(n_readers=2)
    end = hall.replay.end
    assert hall.audience.quiet_until_s(end, 15.0) == 15.0
    assert hall.audience.quiet_until_s(end, 0.0) == math.inf
    assert Hall(n_readers=0).audience.quiet_until_s(end, 15.0) == math.inf
    hall.say(1)
    hall.write(hall.ids[0], now_s=3.0)
    assert hall.audience.quiet_until_s(hall.replay.end, 15.0) == 0.0
    hall.write(hall.ids[1], now_s=4.0)
    assert hall.audience.quiet_until_s(hall.replay.end, 15.0) == 18.0


def test_notice_is_past_when_an_event_is_about_to_come() -> None:
    """All that have everything get it still, each in its turn."""
    hall = Hall(n_readers=2)
    hall.replay.notice = b"!"
    hall.audience.pass_notice(hall.replay, 1.0)
    assert hall.replay.notice == b""
    hall.say(1)
    batches = [hall.audience.readers[reader_id].take(hall.replay) for reader_id in hall.ids]
    assert [batch and batch.data for batch in batches] == [b"!x", b"!x"]


def test_who_has_much_left_and_takes_nothing_or_has_had_its_time_hoards() -> None:
    """One with little left does not, nor one that came lately and takes some."""
    policy = msgspec.structs.replace(POLICIES[PolicyName.DROP], **MARKS, limit_bytes=40, drop_after_s=5.0)
    hall = Hall(policy, n_readers=2)
    stopped, done = hall.ids
    hall.say(11)
    hall.write(done)
    end = hall.replay.end
    assert hall.audience.hoarding(end, 2.0, 0.0) == []
    assert hall.audience.hoarding(end, 2.1, 0.0) == [stopped]
    late = hall.audience.admit(START, end, 3.0)
    hall.audience.observe(end, 8.0, {})
    for reader in hall.audience.readers.values():
        reader.skip_to(START, 8.0)
    assert hall.audience.hoarding(end, 8.0, 4.0) == []
    assert hall.audience.hoarding(end, 8.5, 3.1) == [stopped, done, late]
    hall.audience.dismiss([stopped, done, late])
    assert hall.audience.hoarding(end, 99.0, 3.1) == []


def test_without_a_time_to_drop_a_reader_has_the_usual_one() -> None:
    """Half a minute."""
    hall = Hall(PAUSE)
    hall.say(11)
    end = hall.replay.end
    for reader in hall.audience.readers.values():
        reader.skip_to(START, 30.0)
    assert (hall.audience.hoarding(end, 30.0, 0.0), hall.audience.hoarding(end, 30.1, 0.0)) == ([], hall.ids)
