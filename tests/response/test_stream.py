"""One response with its readers: one end, one cancellation, nothing left behind, and every token counted once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.response.backlog import Cursor, Missed
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import (
    ENDED,
    TRANSITIONS,
    CancelSequences,
    Disconnect,
    Effect,
    EndReader,
    EndResponse,
    Input,
    KeepAlive,
    State,
)
from sluiceway.response.policy import DEFAULT, POLICIES, Policy, PolicyName
from sluiceway.response.readers import PendingWrite
from sluiceway.response.stream import Stream
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.types import FinishReason, Flow

REFUSAL = Refusal(status=500, code="fault", message="It broke.")
MARKS: dict[str, Any] = {
    "low_events": 1,
    "high_events": 3,
    "limit_events": 6,
    "low_bytes": 50,
    "high_bytes": 100,
    "limit_bytes": 200,
}
TIMES: dict[str, Any] = {"park_after_s": 2.0, "drop_after_s": 5.0, "stall_timeout_s": 20.0}
BY_DEGREES = msgspec.structs.replace(DEFAULT, **MARKS, **TIMES)
PAUSE = msgspec.structs.replace(POLICIES[PolicyName.PAUSE], **MARKS, stall_timeout_s=20.0)
DROP = msgspec.structs.replace(POLICIES[PolicyName.DROP], **MARKS, drop_after_s=5.0, stall_timeout_s=20.0)
UNBOUNDED = msgspec.structs.replace(POLICIES[PolicyName.UNBOUNDED], stall_timeout_s=20.0)
PLAIN = StreamTerms(policy=BY_DEGREES)
KEPT = StreamTerms(policy=BY_DEGREES, retention=Retention(max_bytes=100, max_events=8, ttl_s=30.0))
DETACHABLE = StreamTerms(
    policy=BY_DEGREES, retention=Retention(max_bytes=100, max_events=8, grace_s=10.0, ahead_tokens=4, ttl_s=30.0)
)


def roomy() -> Budget:
    return Budget(max_bytes=1 << 20, max_events=1 << 20)


class RecordingStream(Stream):
    """A stream that records which transitions of the table it made."""

    def __init__(self, rids: Iterable[int], terms: StreamTerms, budget: Budget) -> None:
        self.ways: set[tuple[State, Input]] = set()
        super().__init__(rids, terms, budget, 0.0)

    def delivered(self, frame: bytes, n_tokens: int, before: Iterable[bytes] = ()) -> tuple[Effect, ...]:
        self.ways.add((self.state, Input.DELIVERED))
        return super().delivered(frame, n_tokens, before)

    def written(self, reader_id: int, now_s: float, unsent_bytes: int = 0) -> tuple[Effect, ...]:
        self.ways.add((self.state, Input.WRITTEN))
        return super().written(reader_id, now_s, unsent_bytes)

    def lost(self, reader_id: int, now_s: float) -> tuple[Effect, ...]:
        if self.state is State.CLOSED:
            self.ways.add((self.state, Input.LOST))
        return super().lost(reader_id, now_s)

    def _move(self, given: Input) -> None:
        self.ways.add((self.state, given))
        super()._move(given)


@dataclass
class StreamDriver:
    """A stream of the sequences 1 and 2 with one reader. It carries out the effects of the stream."""

    terms: StreamTerms = PLAIN
    budget: Budget = field(default_factory=roomy)
    rids: tuple[int, ...] = (1, 2)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.stream = RecordingStream(self.rids, self.terms, self.budget)
        self.reader = self.attach(0)
        for _ in self.rids:
            self.stream.accepted()

    def is_now(self, state: State) -> bool:
        return self.stream.state is state

    def do(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        for effect in effects:
            match effect:
                case EndResponse():
                    self.stream.conclude(b"$")
                case EndReader(reader_id):
                    self.stream.send_to(reader_id, b"bye")
                case KeepAlive(reader_id):
                    self.stream.send_to(reader_id, b":")
        return effects

    def attach(self, event_id: int) -> int:
        place = self.stream.cursor_after(event_id)
        assert isinstance(place, Cursor)
        reader_id, effects = self.stream.attached(place, self.now_s)
        self.do(effects)
        return reader_id

    def say(self, n_events: int) -> tuple[Effect, ...]:
        """Events of one byte and one token."""
        effects: tuple[Effect, ...] = ()
        for _ in range(n_events):
            effects += self.do(self.stream.delivered(b"x", 1))
        return effects

    def read(self, reader_id: int | None = None, unsent_bytes: int = 0) -> tuple[bytes, tuple[Effect, ...]]:
        """One write to a reader; the first one if none is named."""
        reader_id = reader_id or self.reader
        batch = self.stream.take(reader_id)
        data = b"" if batch is None else bytes(batch.data)
        return data, () if batch is None else self.do(self.stream.written(reader_id, self.now_s, unsent_bytes))

    def wait(self, seconds: float) -> tuple[Effect, ...]:
        self.now_s += seconds
        return self.do(self.stream.tick(self.now_s, {}))

    def finish(self) -> None:
        for rid in self.rids:
            self.do(self.stream.finished(rid, FinishReason.STOP))

    def leave(self, reader_id: int | None = None) -> tuple[Effect, ...]:
        return self.do(self.stream.lost(reader_id or self.reader, self.now_s))


def driver_in(state: State, terms: StreamTerms = DETACHABLE) -> StreamDriver:
    """A stream that came to this state in the usual way."""
    driver = StreamDriver(terms)
    match state:
        case State.DETACHED:
            driver.leave()
        case State.DRAINING:
            driver.finish()
        case State.CLOSING:
            driver.do(driver.stream.close(FinishReason.DRAINING, REFUSAL))
        case State.CLOSED:
            driver.finish()
            driver.leave()
            driver.wait(30.0)
        case State.OPEN:
            pass
    assert driver.stream.state is state
    return driver


CALLS: dict[str, tuple[Callable[[Stream], object], frozenset[State]]] = {
    "accepted": (Stream.accepted, frozenset({State.OPEN})),
    "delivered": (lambda stream: stream.delivered(b"x", 1), frozenset({State.OPEN, State.DETACHED})),
    "finished": (lambda stream: stream.finished(1, FinishReason.STOP), frozenset({State.OPEN, State.DETACHED})),
    "failed": (
        lambda stream: stream.failed(1, FinishReason.ERROR, REFUSAL),
        frozenset({State.OPEN, State.DETACHED}),
    ),
    "rejected": (lambda stream: stream.rejected(REFUSAL), frozenset({State.OPEN})),
    "attached": (lambda stream: stream.attached(Cursor(0, 0, 0), 99.0), frozenset(State) - {State.CLOSED}),
    "conclude": (lambda stream: stream.conclude(b"$"), frozenset()),
    "written": (lambda stream: stream.written(9, 0.0), frozenset(State)),
    "lost": (lambda stream: stream.lost(9, 0.0), frozenset(State)),
    "tick": (lambda stream: stream.tick(0.0, {}), frozenset(State)),
    "close": (lambda stream: stream.close(FinishReason.DRAINING, REFUSAL), frozenset(State)),
    "evict_if_idle": (Stream.evict_if_idle, frozenset(State)),
    "told": (lambda stream: stream.set_status_line(b"!"), frozenset(State)),
}


@pytest.mark.parametrize(("state", "name"), list(itertools.product(State, CALLS)))
def test_every_input_is_valid_or_raises_in_every_state(state: State, name: str) -> None:
    """An invalid input is a bug of the caller, and changes nothing."""
    driver = driver_in(state)
    call, welcome = CALLS[name]
    if state in welcome:
        call(driver.stream)
    else:
        with pytest.raises(InvariantError):
            call(driver.stream)
        assert driver.is_now(state)


def expire(driver: StreamDriver) -> None:
    """Nothing reads for longer than anything is kept."""
    driver.leave()
    driver.wait(30.0)


WAYS: dict[Input, tuple[StreamTerms, Callable[[StreamDriver], object]]] = {
    Input.ACCEPTED: (PLAIN, lambda driver: driver.stream.accepted()),
    Input.DELIVERED: (DETACHABLE, lambda driver: driver.say(1)),
    Input.FINISHED: (DETACHABLE, lambda driver: driver.stream.finished(1, FinishReason.STOP)),
    Input.COMPLETED: (DETACHABLE, StreamDriver.finish),
    Input.FAILED: (DETACHABLE, lambda driver: driver.stream.failed(1, FinishReason.ERROR, REFUSAL)),
    Input.REJECTED: (PLAIN, lambda driver: driver.stream.rejected(REFUSAL)),
    Input.ATTACHED: (DETACHABLE, lambda driver: driver.attach(0)),
    Input.WRITTEN: (DETACHABLE, lambda driver: driver.stream.written(9, 0.0)),
    Input.LOST: (DETACHABLE, lambda driver: driver.leave(9)),
    Input.LEFT: (DETACHABLE, StreamDriver.leave),
    Input.DESERTED: (PLAIN, StreamDriver.leave),
    Input.EMPTIED: (PLAIN, StreamDriver.read),
    Input.TICKED: (DETACHABLE, lambda driver: driver.wait(0.0)),
    Input.EXPIRED: (DETACHABLE, expire),
    Input.CLOSE: (DETACHABLE, lambda driver: driver.stream.close(FinishReason.DRAINING)),
}
"""How each input comes about, and on what terms."""


@pytest.mark.parametrize(("state", "given_input"), list(TRANSITIONS))
def test_every_transition_is_covered(state: State, given_input: Input) -> None:
    """Each pair of the table happens in one of the cases."""
    terms, bring_about = WAYS[given_input]
    driver = driver_in(state, terms)
    bring_about(driver)
    assert (state, given_input) in driver.stream.ways
    assert driver.stream.ways <= TRANSITIONS.keys()


# Time.


def test_the_stream_says_when_the_next_tick_is_needed() -> None:
    """That is when a comment is due, or when waiting, holding or keeping ends."""
    driver = StreamDriver(DETACHABLE)
    assert driver.stream.quiet_until_s == DETACHABLE.keep_alive_s
    driver.say(1)
    assert driver.stream.quiet_until_s <= driver.now_s
    driver.read()
    driver.say(4)
    assert driver.stream.quiet_until_s <= driver.now_s
    driver.read()
    assert driver.stream.quiet_until_s == DETACHABLE.keep_alive_s
    driver.leave()
    assert driver.stream.quiet_until_s <= driver.now_s
    driver.finish()
    assert driver.stream.quiet_until_s == 30.0


def test_events_that_come_together_have_their_own_ids() -> None:
    """Their tokens belong to the last one."""
    driver = StreamDriver(KEPT, rids=(1,))
    driver.do(driver.stream.delivered(b"b", 3, [b"a"]))
    assert driver.stream.backlog.end.event_id + 1 == 3 and driver.stream.backlog.held_bytes > 0
    driver.stream.finished(1, FinishReason.STOP, [b"c", b"d"])
    driver.stream.conclude(b"f", [b"e"])
    assert (
        driver.read()[0] == b"abcdef"
        and driver.stream.backlog.end.event_id + 1 == 7
        and driver.stream.backlog.n_delivered == 3
    )


def test_nothing_is_kept_of_a_request_that_was_refused() -> None:
    """Its id and its key are free for another request."""
    stream = Stream([1], KEPT, roomy(), 0.0)
    place = stream.cursor_after(0)
    assert isinstance(place, Cursor)
    reader_id, _ = stream.attached(place, 0.0)
    stream.rejected(REFUSAL)
    stream.conclude(b"no")
    stream.take(reader_id)
    stream.written(reader_id, 0.0)
    assert stream.state is State.CLOSED


# An ordinary response.


def test_a_response_is_accepted_when_all_its_sequences_are() -> None:
    stream = Stream([1, 2], PLAIN, roomy(), 0.0)
    before = stream.is_accepted
    stream.accepted()
    between = stream.is_accepted
    stream.accepted()
    assert (before, between, stream.is_accepted) == (False, False, True)


def test_the_reader_gets_everything_once_and_then_nothing_is_held() -> None:
    """Tokens without text count with the last event."""
    driver = StreamDriver()
    driver.say(2)
    assert driver.read()[0] == b"xx"
    driver.do(driver.stream.delivered(b"", 3))
    driver.do(driver.stream.finished(1, FinishReason.STOP, [b"1"]))
    assert driver.stream.finished(2, FinishReason.STOP, [b"2"]) == (EndResponse(FinishReason.STOP),)
    driver.stream.conclude(b"$")
    batch = driver.stream.take(driver.reader)
    assert batch == PendingWrite(b"12$", True) and driver.is_now(State.DRAINING)
    assert driver.stream.written(driver.reader, 1.0) == ()
    assert driver.is_now(State.CLOSED) and not driver.stream.has_reader(driver.reader)
    assert (driver.stream.backlog.n_delivered, driver.stream.backlog.n_undelivered, driver.budget.n_bytes) == (5, 0, 0)


def test_the_reason_is_length_if_any_choice_was_cut() -> None:
    driver = StreamDriver(rids=(1, 2, 3))
    driver.stream.finished(1, FinishReason.STOP)
    driver.stream.finished(2, FinishReason.LENGTH)
    assert driver.stream.finished(3, FinishReason.STOP) == (EndResponse(FinishReason.LENGTH),)


def test_the_last_reader_that_leaves_cancels_the_sequences() -> None:
    """They are cancelled once. Waiting tokens count as undelivered."""
    driver = StreamDriver()
    driver.stream.finished(2, FinishReason.STOP)
    driver.say(2)
    assert driver.leave() == (CancelSequences((1,), FinishReason.DISCONNECTED),)
    assert driver.leave() == ()
    assert (driver.stream.state, driver.stream.reason) == (State.CLOSED, FinishReason.DISCONNECTED)
    assert (driver.stream.backlog.n_undelivered, driver.budget.n_events) == (2, 0)


def test_a_write_of_a_reader_that_left_delivers_nothing() -> None:
    """The end of the write changes nothing."""
    driver = StreamDriver()
    driver.say(2)
    assert driver.stream.take(driver.reader)
    driver.leave()
    driver.stream.send_to(driver.reader, b":")
    assert driver.stream.written(driver.reader, 1.0) == () and driver.stream.take(driver.reader) is None
    assert (driver.stream.backlog.n_delivered, driver.stream.backlog.n_undelivered) == (0, 2)


def test_the_others_are_cancelled_when_one_sequence_fails() -> None:
    """Tokens without text count as undelivered."""
    driver = StreamDriver()
    driver.stream.delivered(b"", 1)
    effects = driver.do(driver.stream.failed(1, FinishReason.DEADLINE, REFUSAL))
    assert effects == (
        CancelSequences((2,), FinishReason.DEADLINE),
        EndResponse(FinishReason.DEADLINE, REFUSAL),
    )
    assert driver.read()[0] == b"$"
    assert (driver.stream.state, driver.stream.backlog.n_undelivered) == (State.CLOSED, 1)


def test_nothing_is_cancelled_when_the_request_is_rejected() -> None:
    """The engine holds nothing of it."""
    assert StreamDriver().stream.rejected(REFUSAL) == (EndResponse(FinishReason.ERROR, REFUSAL),)


def test_an_ended_response_without_readers_closes_immediately() -> None:
    stream = Stream([1], PLAIN, roomy(), 0.0)
    effects = stream.close(FinishReason.DRAINING, REFUSAL)
    assert effects == (
        CancelSequences((1,), FinishReason.DRAINING),
        EndResponse(FinishReason.DRAINING, REFUSAL),
    )
    stream.conclude(b"$")
    assert stream.state is State.CLOSED
    assert stream.close(FinishReason.ERROR, REFUSAL) == () and stream.reason is FinishReason.DRAINING


def test_an_unknown_sequence_cannot_finish() -> None:
    """The id belongs to another response: the caller has a bug."""
    with pytest.raises(InvariantError, match="sequence 9"):
        StreamDriver().stream.finished(9, FinishReason.STOP)


# Slow readers.


def test_a_slow_reader_causes_a_pause_then_parking_then_a_drop() -> None:
    """It gets the reason instead of the events that waited."""
    driver = StreamDriver()
    assert driver.say(4) == (SetFlow((1, 2), Flow.PAUSE),)
    assert driver.wait(1.9) == ()
    assert driver.wait(0.1) == (SetFlow((1, 2), Flow.PARK),)
    assert driver.wait(2.9) == ()
    assert driver.wait(0.1) == (
        CancelSequences((1, 2), FinishReason.SLOW_CLIENT),
        EndResponse(FinishReason.SLOW_CLIENT),
    )
    assert (driver.stream.backlog.n_undelivered, driver.budget.n_events) == (4, 1)
    assert driver.read()[0] == b"$"
    assert (driver.stream.state, driver.stream.reason) == (State.CLOSED, FinishReason.SLOW_CLIENT)


def test_a_paused_request_is_resumed_when_its_reader_has_caught_up() -> None:
    """It resumes at the low mark. Events that come meanwhile do not pause it again."""
    driver = StreamDriver()
    driver.say(4)
    assert driver.stream.take(driver.reader)
    assert driver.say(1) == ()
    assert driver.do(driver.stream.written(driver.reader, 0.0)) == (SetFlow((1, 2), Flow.RUN),)


def test_unsent_bytes_pause_too() -> None:
    """It does not matter in which buffer bytes wait. A later measurement shows that they were sent."""
    driver = StreamDriver()
    driver.say(1)
    assert driver.read(unsent_bytes=101) == (b"x", ())
    assert driver.say(3) == (SetFlow((1, 2), Flow.PAUSE),)
    assert driver.read(unsent_bytes=101) == (b"xxx", ())
    assert driver.stream.tick(1.0, {driver.reader: 50}) == (SetFlow((1, 2), Flow.RUN),)


def test_two_large_events_do_not_make_a_reader_slow() -> None:
    """Each may exceed the high-water mark. The reader keeps up if it takes them before the third one comes."""
    driver = StreamDriver()
    for _ in range(3):
        assert driver.stream.delivered(b"x" * 101, 1) == driver.stream.delivered(b"x" * 101, 1) == ()
        assert driver.read() == (b"x" * 202, ())
    assert [driver.stream.delivered(b"x" * 60, 1) for _ in range(3)] == [(), (), (SetFlow((1, 2), Flow.PAUSE),)]


def test_a_write_of_a_dropped_reader_delivers_nothing() -> None:
    """It may arrive, but it counts as undelivered already."""
    driver = StreamDriver()
    driver.say(2)
    assert driver.stream.take(driver.reader)
    driver.say(2)
    driver.wait(5.0)
    assert driver.stream.written(driver.reader, driver.now_s) == ()
    assert driver.read()[0] == b"$"
    assert (driver.stream.backlog.n_delivered, driver.stream.backlog.n_undelivered) == (0, 4)


@pytest.mark.parametrize("terms", [PLAIN, StreamTerms(policy=DROP)])
def test_a_reader_above_the_limit_is_dropped_immediately(terms: StreamTerms) -> None:
    """No more than the limit is ever held for it."""
    driver = StreamDriver(terms)
    driver.say(6)
    assert driver.is_now(State.OPEN)
    assert driver.say(1)[-1] == EndResponse(FinishReason.SLOW_CLIENT)
    assert driver.budget.n_events == 1


def test_the_end_of_a_sequence_is_judged_too() -> None:
    """Its last event waits like any other."""
    driver = StreamDriver()
    driver.say(3)
    assert driver.stream.finished(1, FinishReason.STOP, [b"1"]) == (SetFlow((2,), Flow.PAUSE),)


def test_only_the_slow_of_two_readers_is_dismissed() -> None:
    """The other reader and the request go on."""
    driver = StreamDriver()
    other = driver.attach(0)
    driver.say(4)
    driver.read(other)
    assert driver.wait(2.0) == ()  # behind since now
    driver.say(1)
    driver.read(other)
    assert driver.wait(5.0) == (EndReader(driver.reader, FinishReason.SLOW_CLIENT),)
    driver.say(1)
    assert driver.stream.take(driver.reader) == PendingWrite(b"bye", True)
    assert driver.stream.written(driver.reader, driver.now_s) == () and driver.leave() == ()
    assert driver.read(other)[0] == b"x"
    assert (driver.stream.state, driver.stream.backlog.n_delivered) == (State.OPEN, 6)


def test_a_dismissed_reader_that_takes_nothing_is_disconnected() -> None:
    """It gets the whole timeout before that."""
    driver = StreamDriver()
    other = driver.attach(0)
    driver.say(4)
    driver.read(other)
    driver.wait(0.0)
    driver.wait(5.0)
    assert driver.stream.has_reader(driver.reader)
    assert driver.wait(20.0) == (KeepAlive(other),)
    assert driver.wait(1.0) == (Disconnect(driver.reader),)
    assert not driver.stream.has_reader(driver.reader) and driver.is_now(State.OPEN)


def test_a_reader_that_does_not_take_the_rest_is_disconnected() -> None:
    """After the end of the response, the stall timeout counts."""
    driver = StreamDriver()
    driver.say(1)
    driver.finish()
    assert driver.wait(20.0) == ()
    assert driver.wait(1.0) == (Disconnect(driver.reader),)
    assert (driver.stream.state, driver.stream.backlog.n_undelivered) == (State.CLOSED, 1)


def test_a_reader_that_stalls_below_its_marks_is_dropped() -> None:
    """It does not matter how little waits for it."""
    driver = StreamDriver()
    driver.say(1)
    assert driver.wait(20.5)[-1] == EndResponse(FinishReason.SLOW_CLIENT)


def test_the_memory_of_all_streams_bounds_each_one() -> None:
    """Pressure from other streams pauses at the low mark, and more of it drops the reader."""
    budget = Budget(max_bytes=1 << 20, max_events=20)
    driver = StreamDriver(budget=budget)
    for _ in range(14):
        budget.hold(1)
    assert driver.say(2) == (SetFlow((1, 2), Flow.PAUSE),)
    for _ in range(6):
        budget.hold(1)
    assert driver.wait(0.1)[-1] == EndResponse(FinishReason.SLOW_CLIENT)


# Keeping alive.


def test_a_silent_response_is_kept_alive() -> None:
    """The time counts from the last write, or from the last comment."""
    driver = StreamDriver(StreamTerms(policy=BY_DEGREES, keep_alive_s=4.0))
    assert driver.wait(4.0) == (KeepAlive(driver.reader),)
    assert driver.read()[0] == b":"
    assert driver.wait(3.0) == ()
    driver.say(1)
    driver.read()
    assert driver.wait(3.0) == ()
    assert driver.wait(1.0) == (KeepAlive(driver.reader),)


def test_comments_come_only_while_a_response_runs() -> None:
    """They can be turned off."""
    off = StreamDriver(StreamTerms(keep_alive_s=0.0))
    waiting = Stream([1], PLAIN, roomy(), 0.0)
    waiting.attached(Cursor(0, 0, 0), 0.0)
    over = StreamDriver(KEPT)
    over.finish()
    over.read()
    assert off.wait(99.0) == over.wait(20.0) == waiting.tick(99.0, {}) == ()


# Resumption.


def test_a_reader_that_comes_back_gets_missed_and_new_events() -> None:
    """Each token is delivered once, however often it is read."""
    driver = StreamDriver(DETACHABLE)
    driver.say(2)
    driver.read()
    assert driver.leave() == () and driver.is_now(State.DETACHED)
    driver.say(1)
    again = driver.attach(1)
    assert driver.is_now(State.OPEN)
    driver.say(1)
    assert driver.read(again)[0] == b"xxx"
    assert (driver.stream.backlog.n_delivered, driver.stream.backlog.end.event_id + 1) == (4, 5)


def test_a_detached_response_runs_ahead_up_to_a_limit() -> None:
    """Then it is paused, and later parked. It resumes when a reader comes."""
    driver = StreamDriver(DETACHABLE)
    driver.leave()
    assert driver.say(3) == ()
    assert driver.say(1) == (SetFlow((1, 2), Flow.PAUSE),)
    assert driver.wait(1.0) == ()
    assert driver.wait(1.0) == (SetFlow((1, 2), Flow.PARK),)
    place = driver.stream.cursor_after(0)
    assert isinstance(place, Cursor)
    assert driver.stream.attached(place, driver.now_s)[1] == (SetFlow((1, 2), Flow.RUN),)


def test_a_detached_response_pauses_before_it_loses_events() -> None:
    """It pauses when the window is full. Later events push out whole events, which count as undelivered."""
    driver = StreamDriver(DETACHABLE)
    driver.leave()
    assert driver.do(driver.stream.delivered(b"x" * 100, 1)) == (SetFlow((1, 2), Flow.PAUSE),)
    assert driver.do(driver.stream.delivered(b"x" * 60, 1)) == ()
    assert driver.stream.cursor_after(0) is Missed.GONE
    assert (driver.stream.backlog.n_undelivered, driver.stream.backlog.n_waiting) == (1, 1)


def test_a_detached_response_ends_after_its_grace_time() -> None:
    """A later reader gets the reason. After a while the response is forgotten."""
    driver = StreamDriver(DETACHABLE)
    driver.leave()
    assert driver.wait(9.0) == ()
    assert driver.wait(1.0) == (
        CancelSequences((1, 2), FinishReason.GRACE_EXPIRED),
        EndResponse(FinishReason.GRACE_EXPIRED),
    )
    late = driver.attach(0)
    assert driver.read(late)[0] == b"$"
    assert driver.wait(31.0) == () and driver.is_now(State.CLOSING)
    assert driver.leave(late) == ()
    driver.wait(1.0)
    assert (driver.stream.state, driver.budget.n_bytes) == (State.CLOSED, 0)


def test_an_ended_response_is_kept_for_readers_that_come_back() -> None:
    """A reader may leave before it has everything, and ask for the rest."""
    driver = StreamDriver(KEPT)
    driver.say(2)
    driver.finish()
    assert driver.leave() == () and driver.is_now(State.DRAINING)
    again = driver.attach(1)
    assert driver.read(again)[0] == b"x$"
    assert driver.stream.cursor_after(3) is Missed.AT_END
    assert driver.stream.close(FinishReason.DRAINING, REFUSAL) == ()
    assert driver.stream.reason is FinishReason.STOP


def test_a_resumable_response_without_a_grace_time_is_cancelled() -> None:
    """So is one that was not accepted, since no client knows of it yet."""
    kept = StreamDriver(KEPT)
    assert kept.leave() == (CancelSequences((1, 2), FinishReason.DISCONNECTED),)
    early = Stream([1], DETACHABLE, roomy(), 0.0)
    reader_id, _ = early.attached(Cursor(0, 0, 0), 0.0)
    assert early.lost(reader_id, 0.0) == (CancelSequences((1,), FinishReason.DISCONNECTED),)


def test_a_dropped_reader_detaches_a_response_with_a_grace_time() -> None:
    """The reader gets the reason, and may come back for the events that it missed."""
    driver = StreamDriver(DETACHABLE)
    driver.say(4)
    assert driver.wait(5.0) == (EndReader(driver.reader, FinishReason.SLOW_CLIENT), SetFlow((1, 2), Flow.PARK))
    assert driver.is_now(State.DETACHED)
    assert driver.read()[0] == b"bye" and driver.leave() == ()
    assert driver.is_now(State.DETACHED)
    assert driver.read(driver.attach(0)) == (b"xxxx", ())


def test_events_kept_for_a_replay_are_evicted_first() -> None:
    """A reader that asks for them learns that they are gone."""
    budget = Budget(max_bytes=1 << 20, max_events=4)
    driver = StreamDriver(KEPT, budget)
    driver.say(2)
    driver.read()
    budget.hold(1)
    budget.hold(1)
    driver.wait(0.1)
    assert driver.stream.cursor_after(0) is Missed.GONE and budget.n_events == 2


# Events that pass the backlog by.


def idle_driver(terms: StreamTerms = PLAIN) -> StreamDriver:
    """A stream whose reader has its first event."""
    driver = StreamDriver(terms)
    driver.say(1)
    driver.read()
    return driver


def test_an_event_passes_the_backlog_when_its_reader_has_everything() -> None:
    """Then the stream is as if the event had waited. Tokens without text count with it."""
    waited, passed = idle_driver(), idle_driver()
    for driver in (waited, passed):
        driver.now_s = 2.0
        driver.do(driver.stream.delivered(b"", 3))
    waited.do(waited.stream.delivered(b"xy", 2))
    waited.read()
    assert passed.stream.idle_reader == passed.reader
    assert passed.stream.passed(passed.reader, 2, 2, 2.0, 0) == ()
    for driver in (waited, passed):
        backlog = driver.stream.backlog
        assert (backlog.end, backlog.n_delivered, backlog.n_waiting) == (Cursor(2, 3, 6), 6, 0)
        assert (driver.budget.n_bytes, driver.budget.n_events, driver.stream.quiet_until_s) == (
            0,
            0,
            2.0 + driver.terms.keep_alive_s,
        )
        assert (driver.say(1), driver.read()[0]) == ((), b"x")


@pytest.mark.parametrize(("unsent_bytes", "effects"), [(0, ()), (150, (SetFlow((1, 2), Flow.PAUSE),))])
def test_bytes_of_a_passed_event_that_the_transport_holds_count(unsent_bytes: int, effects: tuple[Effect, ...]) -> None:
    """Three more events alone are not too many."""
    driver = idle_driver()
    driver.do(driver.stream.passed(driver.reader, 150, 1, 0.0, unsent_bytes))
    assert driver.say(3) == effects


def test_no_event_passes_a_reader_that_lacks_something() -> None:
    """Nor a dismissed one, nor one of two. Nor if events are kept, or while there is pressure."""
    behind, noticed, writing, ended = idle_driver(), idle_driver(), idle_driver(), idle_driver()
    behind.say(1)
    noticed.stream.set_status_line(b":")
    writing.say(1)
    writing.stream.take(writing.reader)
    ended.finish()
    fresh, kept, pressed = StreamDriver(), idle_driver(KEPT), idle_driver()
    pressed.budget.hold(1 << 20)
    two = idle_driver()
    two.read(two.attach(1))
    for driver in (behind, noticed, writing, ended, fresh, kept, pressed, two):
        assert driver.stream.idle_reader is None


# All of it, in any order.


@dataclass
class ReaderModel:
    """A reader as its writer sees it: what was written to it, and the current write."""

    start: int
    heard: bytes = b""
    pending: PendingWrite | None = None
    is_over: bool = False

    def check(self, last_id: int, *, may_skip: bool) -> None:
        """Each event comes once and in order. Only a reader that was too slow lacks events before the last."""
        ids = [int(number) for number in re.findall(rb"<(\d+)", self.heard)]
        expected = list(range(self.start + 1, self.start + 1 + len(ids)))
        if may_skip and ids and ids[-1] == last_id:
            assert ids[:-1] == expected[:-1]
        else:
            assert ids == expected
        assert self.heard.count(b"$") + self.heard.count(b"bye") <= 1
        assert self.heard.endswith((b"$>", b"bye")) or not re.search(rb"[$]|bye", self.heard)


POLICIES_TRIED = [BY_DEGREES, PAUSE, DROP, UNBOUNDED]


class StreamMachine(RuleBasedStateMachine):
    """A caller and its readers, which keep the rules and do everything else in any order."""

    retentions: ClassVar[list[Retention | None]] = [None, KEPT.retention]

    @initialize(
        n=st.integers(1, 2),
        policy=st.sampled_from(POLICIES_TRIED),
        data=st.data(),
        max_events=st.sampled_from([1000, 12]),
        is_accepted=st.sampled_from([True, True, True, False]),
        opening=st.sampled_from(["", "", "leave", "finish"]),
    )
    def begin(
        self, n: int, policy: Policy, data: st.DataObject, max_events: int, is_accepted: bool, opening: str
    ) -> None:
        self.budget = Budget(max_bytes=1 << 20, max_events=max_events)
        retention = data.draw(st.sampled_from(self.retentions))
        self.terms = StreamTerms(policy=policy, retention=retention, keep_alive_s=6.0)
        self.now_s = 0.0
        self.stream = RecordingStream(range(n), self.terms, self.budget)
        self.live = set(range(n))
        self.n_unaccepted = n
        self.effects: list[Effect] = []
        self.runs = True
        self.reader_models: dict[int, ReaderModel] = {}
        self.pushed = self.last_id = 0
        self.come(0)
        while is_accepted and self.n_unaccepted:
            self.accept()
        match opening:
            case "leave":
                self.do(self.stream.lost(1, 0.0))
            case "finish":
                for rid in range(n):
                    self.finish(rid)

    def frame(self, mark: str = "") -> bytes:
        self.last_id += 1
        return f"<{self.last_id}{mark}>".encode()

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case CancelSequences(rids):
                    assert rids and set(rids) == self.live
                    self.live.clear()
                case EndResponse():
                    assert not self.live
                    self.stream.conclude(self.frame("$"))
                case EndReader(reader_id):
                    self.stream.send_to(reader_id, b"bye")
                case KeepAlive(reader_id):
                    self.stream.send_to(reader_id, b":")
                case Disconnect(reader_id):
                    assert not self.stream.has_reader(reader_id)
                case SetFlow(rids, flow):
                    assert set(rids) == self.live and rids
                    assert (flow is Flow.RUN) != self.runs or flow is Flow.PARK
                    self.runs = flow is Flow.RUN

    def come(self, event_id: int) -> None:
        place = self.stream.cursor_after(event_id)
        if isinstance(place, Cursor):
            reader_id, effects = self.stream.attached(place, self.now_s)
            self.reader_models[reader_id] = ReaderModel(event_id)
            self.do(effects)

    @precondition(lambda self: self.n_unaccepted and self.live and self.stream.state is State.OPEN)
    @rule()
    def accept(self) -> None:
        self.n_unaccepted -= 1
        self.stream.accepted()

    @precondition(lambda self: self.live)
    @rule(n_tokens=st.integers(0, 2), has_text=st.sampled_from([True, True, False]), times=st.integers(1, 4))
    def deliver(self, n_tokens: int, has_text: bool, times: int) -> None:
        for _ in range(times):
            if self.live:
                self.pushed += n_tokens
                self.do(self.stream.delivered(self.frame() if has_text else b"", n_tokens))

    @precondition(lambda self: self.live and self.stream.idle_reader is not None)
    @rule(n_tokens=st.integers(0, 2), unsent_bytes=st.sampled_from([0, 0, 3, 120]))
    def pass_by(self, n_tokens: int, unsent_bytes: int) -> None:
        reader_id = self.stream.idle_reader
        assert reader_id is not None
        reader_model, frame = self.reader_models[reader_id], self.frame()
        assert reader_model.pending is None
        reader_model.heard += frame
        reader_model.check(self.last_id, may_skip=False)
        self.pushed += n_tokens
        self.do(self.stream.passed(reader_id, len(frame), n_tokens, self.now_s, unsent_bytes))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), way=st.sampled_from(["finish", "finish", "finish", "fail", "reject"]))
    def end(self, data: st.DataObject, way: str) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        if way == "finish":
            self.finish(rid)
        elif way == "fail":
            self.live.discard(rid)
            self.do(self.stream.failed(rid, FinishReason.ERROR, REFUSAL))
        elif self.stream.state is State.OPEN:
            self.live.clear()
            self.do(self.stream.rejected(REFUSAL))

    def finish(self, rid: int) -> None:
        self.live.discard(rid)
        self.do(self.stream.finished(rid, FinishReason.STOP, [self.frame()]))

    @precondition(lambda self: self.terms.retention and self.stream.state is not State.CLOSED)
    @rule(back=st.integers(0, 6))
    def attach(self, back: int) -> None:
        self.come(max(0, self.last_id - back))

    @precondition(lambda self: self.reader_models)
    @rule(data=st.data(), is_slow=st.booleans(), unsent_bytes=st.sampled_from([0, 0, 3, 120]))
    def take(self, data: st.DataObject, is_slow: bool, unsent_bytes: int) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.reader_models)))
        reader_model = self.reader_models[reader_id]
        batch = self.stream.take(reader_id)
        if batch is not None:
            assert reader_model.pending is None and batch.data and not reader_model.is_over
            reader_model.pending = batch
            if not is_slow:
                self.write(reader_id, unsent_bytes)

    @precondition(lambda self: any(one.pending for one in self.reader_models.values()))
    @rule(data=st.data(), unsent_bytes=st.sampled_from([0, 0, 3, 120]))
    def catch_up(self, data: st.DataObject, unsent_bytes: int) -> None:
        late = sorted(reader_id for reader_id, one in self.reader_models.items() if one.pending)
        self.write(data.draw(st.sampled_from(late)), unsent_bytes)

    def write(self, reader_id: int, unsent_bytes: int) -> None:
        reader_model = self.reader_models[reader_id]
        assert reader_model.pending is not None
        reader_model.heard += bytes(reader_model.pending.data).replace(b":", b"")
        reader_model.is_over, reader_model.pending = reader_model.pending.is_last, None
        reader_model.check(self.last_id, may_skip=self.stream.reason is FinishReason.SLOW_CLIENT)
        self.do(self.stream.written(reader_id, self.now_s, unsent_bytes))

    @precondition(lambda self: self.reader_models)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.reader_models)))
        self.do(self.stream.lost(reader_id, self.now_s))
        assert not self.stream.has_reader(reader_id)
        if self.reader_models[reader_id].pending is None:
            del self.reader_models[reader_id]

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 11.0, 40.0]), has_sent=st.booleans())
    def wait(self, seconds: float, has_sent: bool) -> None:
        self.now_s += seconds
        self.do(self.stream.tick(self.now_s, dict.fromkeys(self.reader_models, 0) if has_sent else {}))

    @rule(is_meant=st.sampled_from([False, False, True]))
    def close(self, is_meant: bool) -> None:
        if is_meant or self.stream.state not in (State.OPEN, State.DETACHED):
            self.do(self.stream.close(FinishReason.DRAINING, REFUSAL))
            assert not self.live

    def of_kind(self, *kinds: type[Effect]) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kinds)]

    @invariant()
    def it_lives_while_its_sequences_do(self) -> None:
        assert (self.stream.state in (State.OPEN, State.DETACHED)) == bool(self.live)

    @invariant()
    def there_is_one_end_and_one_cancel(self) -> None:
        n_ends = len(self.of_kind(EndResponse))
        assert n_ends <= 1 and len(self.of_kind(CancelSequences)) <= 1
        assert n_ends == 1 or self.stream.state not in ENDED
        assert (self.stream.reason is None) <= (self.stream.state in (State.OPEN, State.DETACHED))
        dismissed = [effect.reader_id for effect in self.effects if isinstance(effect, EndReader)]
        assert len(dismissed) == len(set(dismissed))

    @invariant()
    def every_token_counts_once(self) -> None:
        stream = self.stream
        assert self.pushed == stream.backlog.n_delivered + stream.backlog.n_undelivered + stream.backlog.n_waiting
        assert stream.state is not State.CLOSED or stream.backlog.n_waiting == 0

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        if self.stream.state is State.CLOSED:
            assert (self.budget.n_bytes, self.budget.n_events) == (0, 0)
        kept = 0 if self.terms.retention is None else self.terms.retention.max_events
        limit = self.terms.policy.limit_events
        n_ends = 3  # of sequences and of the response: these have to come, also if a reader does not read
        assert limit is None or self.budget.n_events <= kept + limit + n_ends


class DetachableMachine(StreamMachine):
    """Readers leave, come back, and get the events that they missed."""

    retentions = [DETACHABLE.retention]


SETTINGS = settings(max_examples=50, stateful_step_count=20, deadline=None, derandomize=True)
TestStream = StreamMachine.TestCase
TestStream.settings = SETTINGS
TestDetachable = DetachableMachine.TestCase
TestDetachable.settings = SETTINGS


def test_readers_that_have_everything_get_the_status_line() -> None:
    """A later reader gets the current line, and none after the next event."""
    driver = StreamDriver(KEPT)
    driver.stream.set_status_line(b"1")
    assert driver.read()[0] == b"1"
    driver.stream.set_status_line(b"2")
    other = driver.attach(0)
    assert (driver.read()[0], driver.read(other)[0]) == (b"2", b"2")
    driver.stream.set_status_line(b"3")
    driver.say(1)
    assert (driver.read()[0], driver.read(other)[0]) == (b"3x", b"3x")
    assert driver.read(driver.attach(0))[0] == b"x"
    assert (driver.stream.backlog.n_delivered, driver.stream.backlog.end.event_id + 1) == (1, 2)


def test_kept_events_are_gone_when_the_response_is_evicted() -> None:
    """Only a response that has ended and has no reader is evicted."""
    driver = StreamDriver(KEPT)
    driver.say(2)
    driver.stream.evict_if_idle()
    assert driver.is_now(State.OPEN)
    driver.finish()
    driver.stream.evict_if_idle()
    assert driver.is_now(State.DRAINING) and driver.read()[0] == b"xx$"
    driver.leave()
    assert driver.is_now(State.DRAINING) and driver.budget.n_events == 3
    driver.stream.evict_if_idle()
    assert driver.is_now(State.CLOSED) and driver.budget.n_events == 0
    assert driver.stream.cursor_after(0) is Missed.GONE and driver.stream.cursor_after(3) is Missed.AT_END


def test_the_time_to_live_counts_from_the_last_event() -> None:
    """Even if nothing has happened for long before it."""
    driver = StreamDriver(KEPT, rids=(1,))
    for effect in driver.stream.finished(1, FinishReason.STOP):
        assert isinstance(effect, EndResponse)
    driver.stream.conclude(b"$", now_s=100.0)
    driver.now_s = 100.0
    assert driver.stream.ended_s == 100.0 and driver.read()[0] == b"$"
    driver.leave()
    driver.wait(29.9)
    assert driver.is_now(State.DRAINING)
    driver.wait(0.1)
    assert driver.is_now(State.CLOSED)


# Whole answers.


def test_a_whole_answer_counts_in_the_budget_from_its_first_token() -> None:
    """Each piece is released when it was written. The tokens count with the last piece."""
    budget = roomy()
    driver = StreamDriver(budget=budget)
    assert driver.do(driver.stream.gathered(40_000, 2)) == ()
    assert driver.stream.backlog.n_waiting == 2 and budget.n_bytes == 40_000
    for rid in driver.rids:
        effects = driver.stream.finished(rid, FinishReason.STOP)
    assert effects == (EndResponse(FinishReason.STOP),)
    driver.stream.conclude(b"c" * 20_000, [b"a" * 20_000, b"b" * 20_000])
    left = [budget.n_bytes]
    for _ in range(3):
        assert driver.stream.backlog.n_delivered == 0
        driver.read()
        left.append(budget.n_bytes)
    assert left == [60_000, 40_000, 20_000, 0]
    assert driver.is_now(State.CLOSED) and driver.stream.backlog.n_delivered == 2


def test_a_whole_answer_that_is_too_large_is_ended() -> None:
    """It has an error of its own, and nothing of it is held."""
    budget = Budget(max_bytes=40_000, max_events=100)
    driver = StreamDriver(budget=budget)
    assert driver.do(driver.stream.gathered(30_000, 1)) == ()
    cancel, end = driver.do(driver.stream.gathered(1, 1))
    assert cancel == CancelSequences((1, 2), FinishReason.ERROR)
    assert isinstance(end, EndResponse) and end.refusal is not None and end.refusal.code == "answer_too_large"
    assert budget.n_bytes == len(b"$")


def test_a_whole_answer_that_grows_while_memory_is_full_is_ended() -> None:
    """A pause would free nothing. An answer below its low mark goes on."""
    budget = Budget(max_bytes=1_000, max_events=100)
    driver = StreamDriver(budget=budget)
    budget.hold(990)
    assert driver.do(driver.stream.gathered(50, 1)) == ()
    cancel, end = driver.do(driver.stream.gathered(1, 1))
    assert cancel == CancelSequences((1, 2), FinishReason.ERROR)
    assert isinstance(end, EndResponse) and end.refusal is not None and end.refusal.status == 503
    assert budget.n_bytes == 990 + len(b"$")


def test_slow_readers_of_ended_responses_go_when_memory_is_full() -> None:
    """They have a moment. Without pressure they have the stall timeout."""
    budget = Budget(max_bytes=1_000, max_events=100)
    driver = StreamDriver(budget=budget)
    driver.do(driver.stream.gathered(300, 1))
    for rid in driver.rids:
        driver.stream.finished(rid, FinishReason.STOP)
    driver.stream.conclude(b"b" * 150, [b"a" * 150])
    assert driver.wait(2.5) == ()
    budget.hold(800)
    assert driver.wait(0.25) == (Disconnect(driver.reader),)
    assert budget.n_bytes == 800 and driver.stream.backlog.n_undelivered == 1


def test_a_detached_whole_answer_goes_on() -> None:
    """It is paused when it is ahead. After its last sequence it cannot grow."""
    driver = StreamDriver(DETACHABLE)
    driver.leave()
    assert driver.do(driver.stream.gathered(10, 4)) == (SetFlow((1, 2), Flow.PAUSE),)
    driver.do(driver.stream.close(FinishReason.DRAINING, REFUSAL))
    with pytest.raises(InvariantError):
        driver.stream.gathered(1, 1)
