"""One response with its readers: one terminal, one cancel, nothing held that nobody wants, every token counted once."""

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


class Watched(Stream):
    """Notes by which ways of the table it went."""

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
class Hall:
    """A stream of the sequences 1 and 2 with one reader, and a shell that ends what it is told to end."""

    terms: StreamTerms = PLAIN
    budget: Budget = field(default_factory=roomy)
    rids: tuple[int, ...] = (1, 2)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.stream = Watched(self.rids, self.terms, self.budget)
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


def hall_in(state: State, terms: StreamTerms = DETACHABLE) -> Hall:
    """A stream that came to this state in the ordinary way."""
    hall = Hall(terms)
    match state:
        case State.DETACHED:
            hall.leave()
        case State.DRAINING:
            hall.finish()
        case State.CLOSING:
            hall.do(hall.stream.close(FinishReason.DRAINING, REFUSAL))
        case State.CLOSED:
            hall.finish()
            hall.leave()
            hall.wait(30.0)
        case State.OPEN:
            pass
    assert hall.stream.state is state
    return hall


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
def test_every_fact_is_taken_or_raises_in_every_state(state: State, name: str) -> None:
    """Where it makes no sense it is a bug of the caller, and changes nothing."""
    hall = hall_in(state)
    call, welcome = CALLS[name]
    if state in welcome:
        call(hall.stream)
    else:
        with pytest.raises(InvariantError):
            call(hall.stream)
        assert hall.is_now(state)


def expire(hall: Hall) -> None:
    """Nobody reads for longer than anything is kept."""
    hall.leave()
    hall.wait(30.0)


WAYS: dict[Input, tuple[StreamTerms, Callable[[Hall], object]]] = {
    Input.ACCEPTED: (PLAIN, lambda hall: hall.stream.accepted()),
    Input.DELIVERED: (DETACHABLE, lambda hall: hall.say(1)),
    Input.FINISHED: (DETACHABLE, lambda hall: hall.stream.finished(1, FinishReason.STOP)),
    Input.COMPLETED: (DETACHABLE, Hall.finish),
    Input.FAILED: (DETACHABLE, lambda hall: hall.stream.failed(1, FinishReason.ERROR, REFUSAL)),
    Input.REJECTED: (PLAIN, lambda hall: hall.stream.rejected(REFUSAL)),
    Input.ATTACHED: (DETACHABLE, lambda hall: hall.attach(0)),
    Input.WRITTEN: (DETACHABLE, lambda hall: hall.stream.written(9, 0.0)),
    Input.LOST: (DETACHABLE, lambda hall: hall.leave(9)),
    Input.LEFT: (DETACHABLE, Hall.leave),
    Input.DESERTED: (PLAIN, Hall.leave),
    Input.EMPTIED: (PLAIN, Hall.read),
    Input.TICKED: (DETACHABLE, lambda hall: hall.wait(0.0)),
    Input.EXPIRED: (DETACHABLE, expire),
    Input.CLOSE: (DETACHABLE, lambda hall: hall.stream.close(FinishReason.DRAINING)),
}
"""How each input comes about, and on what terms."""


@pytest.mark.parametrize(("state", "given_input"), list(TRANSITIONS))
def test_every_way_of_the_table_is_gone(state: State, given_input: Input) -> None:
    """No pair is in the table that does not come about."""
    terms, bring_about = WAYS[given_input]
    hall = hall_in(state, terms)
    bring_about(hall)
    assert (state, given_input) in hall.stream.ways
    assert hall.stream.ways <= TRANSITIONS.keys()


# Time.


def test_time_tells_nothing_new_for_a_while_where_nothing_waits() -> None:
    """Until a comment is due; where something waits, is held or kept, when that is over."""
    hall = Hall(DETACHABLE)
    assert hall.stream.quiet_until_s == DETACHABLE.keep_alive_s
    hall.say(1)
    assert hall.stream.quiet_until_s <= hall.now_s
    hall.read()
    hall.say(4)
    assert hall.stream.quiet_until_s <= hall.now_s
    hall.read()
    assert hall.stream.quiet_until_s == DETACHABLE.keep_alive_s
    hall.leave()
    assert hall.stream.quiet_until_s <= hall.now_s
    hall.finish()
    assert hall.stream.quiet_until_s == 30.0


def test_events_that_come_together_are_events() -> None:
    """Each with its own id; the tokens go with the last."""
    hall = Hall(KEPT, rids=(1,))
    hall.do(hall.stream.delivered(b"b", 3, [b"a"]))
    assert hall.stream.backlog.end.event_id + 1 == 3 and hall.stream.backlog.held_bytes > 0
    hall.stream.finished(1, FinishReason.STOP, [b"c", b"d"])
    hall.stream.conclude(b"f", [b"e"])
    assert (
        hall.read()[0] == b"abcdef"
        and hall.stream.backlog.end.event_id + 1 == 7
        and hall.stream.backlog.n_delivered == 3
    )


def test_nothing_is_kept_of_a_request_that_was_refused() -> None:
    """Its id and its key are free for another try."""
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


def test_it_is_accepted_when_every_sequence_is() -> None:
    """A response of two sequences needs two."""
    stream = Stream([1, 2], PLAIN, roomy(), 0.0)
    before = stream.is_accepted
    stream.accepted()
    between = stream.is_accepted
    stream.accepted()
    assert (before, between, stream.is_accepted) == (False, False, True)


def test_the_reader_gets_everything_once_and_then_nothing_is_held() -> None:
    """Also what has no text of its own, which goes with the end."""
    hall = Hall()
    hall.say(2)
    assert hall.read()[0] == b"xx"
    hall.do(hall.stream.delivered(b"", 3))
    hall.do(hall.stream.finished(1, FinishReason.STOP, [b"1"]))
    assert hall.stream.finished(2, FinishReason.STOP, [b"2"]) == (EndResponse(FinishReason.STOP),)
    hall.stream.conclude(b"$")
    batch = hall.stream.take(hall.reader)
    assert batch == PendingWrite(b"12$", True) and hall.is_now(State.DRAINING)
    assert hall.stream.written(hall.reader, 1.0) == ()
    assert hall.is_now(State.CLOSED) and not hall.stream.has_reader(hall.reader)
    assert (hall.stream.backlog.n_delivered, hall.stream.backlog.n_undelivered, hall.budget.n_bytes) == (5, 0, 0)


def test_one_that_was_cut_makes_the_whole_cut() -> None:
    """With several choices the reason is `length` if any of them was cut."""
    hall = Hall(rids=(1, 2, 3))
    hall.stream.finished(1, FinishReason.STOP)
    hall.stream.finished(2, FinishReason.LENGTH)
    assert hall.stream.finished(3, FinishReason.STOP) == (EndResponse(FinishReason.LENGTH),)


def test_what_lives_is_cancelled_when_the_reader_deserts() -> None:
    """Once; nobody is told, since nobody is there, and what waited is counted."""
    hall = Hall()
    hall.stream.finished(2, FinishReason.STOP)
    hall.say(2)
    assert hall.leave() == (CancelSequences((1,), FinishReason.DISCONNECTED),)
    assert hall.leave() == ()
    assert (hall.stream.state, hall.stream.reason) == (State.CLOSED, FinishReason.DISCONNECTED)
    assert (hall.stream.backlog.n_undelivered, hall.budget.n_events) == (2, 0)


def test_what_was_being_written_is_not_delivered_when_the_reader_left_meanwhile() -> None:
    """The writer that comes back later changes nothing."""
    hall = Hall()
    hall.say(2)
    assert hall.stream.take(hall.reader)
    hall.leave()
    hall.stream.send_to(hall.reader, b":")
    assert hall.stream.written(hall.reader, 1.0) == () and hall.stream.take(hall.reader) is None
    assert (hall.stream.backlog.n_delivered, hall.stream.backlog.n_undelivered) == (0, 2)


def test_the_others_are_cancelled_when_one_sequence_fails() -> None:
    """Tokens without text are lost with it."""
    hall = Hall()
    hall.stream.delivered(b"", 1)
    effects = hall.do(hall.stream.failed(1, FinishReason.DEADLINE, REFUSAL))
    assert effects == (
        CancelSequences((2,), FinishReason.DEADLINE),
        EndResponse(FinishReason.DEADLINE, REFUSAL),
    )
    assert hall.read()[0] == b"$"
    assert (hall.stream.state, hall.stream.backlog.n_undelivered) == (State.CLOSED, 1)


def test_nothing_is_cancelled_when_the_request_is_rejected() -> None:
    """Nothing of it is held upstream."""
    assert Hall().stream.rejected(REFUSAL) == (EndResponse(FinishReason.ERROR, REFUSAL),)


def test_it_is_closed_at_once_when_it_ends_and_nobody_is_there() -> None:
    """Nobody has to get the reason."""
    stream = Stream([1], PLAIN, roomy(), 0.0)
    effects = stream.close(FinishReason.DRAINING, REFUSAL)
    assert effects == (
        CancelSequences((1,), FinishReason.DRAINING),
        EndResponse(FinishReason.DRAINING, REFUSAL),
    )
    stream.conclude(b"$")
    assert stream.state is State.CLOSED
    assert stream.close(FinishReason.ERROR, REFUSAL) == () and stream.reason is FinishReason.DRAINING


def test_a_stranger_cannot_finish() -> None:
    """An id of another response is our bug."""
    with pytest.raises(InvariantError, match="sequence 9"):
        Hall().stream.finished(9, FinishReason.STOP)


# Slow readers.


def test_a_slow_reader_is_paused_parked_and_dropped_by_degrees() -> None:
    """And told why, in place of what it did not take."""
    hall = Hall()
    assert hall.say(4) == (SetFlow((1, 2), Flow.PAUSE),)
    assert hall.wait(1.9) == ()
    assert hall.wait(0.1) == (SetFlow((1, 2), Flow.PARK),)
    assert hall.wait(2.9) == ()
    assert hall.wait(0.1) == (
        CancelSequences((1, 2), FinishReason.SLOW_CLIENT),
        EndResponse(FinishReason.SLOW_CLIENT),
    )
    assert (hall.stream.backlog.n_undelivered, hall.budget.n_events) == (4, 1)
    assert hall.read()[0] == b"$"
    assert (hall.stream.state, hall.stream.reason) == (State.CLOSED, FinishReason.SLOW_CLIENT)


def test_a_paused_request_is_resumed_when_its_reader_has_caught_up() -> None:
    """To the low mark; what comes meanwhile does not pause it twice."""
    hall = Hall()
    hall.say(4)
    assert hall.stream.take(hall.reader)
    assert hall.say(1) == ()
    assert hall.do(hall.stream.written(hall.reader, 0.0)) == (SetFlow((1, 2), Flow.RUN),)


def test_unsent_bytes_pause_too() -> None:
    """It makes no difference in which buffer they wait; a later look at the transport shows that they have gone."""
    hall = Hall()
    hall.say(1)
    assert hall.read(unsent_bytes=101) == (b"x", ())
    assert hall.say(3) == (SetFlow((1, 2), Flow.PAUSE),)
    assert hall.read(unsent_bytes=101) == (b"xxx", ())
    assert hall.stream.tick(1.0, {hall.reader: 50}) == (SetFlow((1, 2), Flow.RUN),)


def test_a_reader_of_large_events_is_not_behind_for_two_of_them() -> None:
    """Each may be above the high-water mark: who has taken them before the third is there keeps up."""
    hall = Hall()
    for _ in range(3):
        assert hall.stream.delivered(b"x" * 101, 1) == hall.stream.delivered(b"x" * 101, 1) == ()
        assert hall.read() == (b"x" * 202, ())
    assert [hall.stream.delivered(b"x" * 60, 1) for _ in range(3)] == [(), (), (SetFlow((1, 2), Flow.PAUSE),)]


def test_what_was_being_written_is_no_delivery_when_the_reader_was_dropped() -> None:
    """It may get there; it counts as undelivered already."""
    hall = Hall()
    hall.say(2)
    assert hall.stream.take(hall.reader)
    hall.say(2)
    hall.wait(5.0)
    assert hall.stream.written(hall.reader, hall.now_s) == ()
    assert hall.read()[0] == b"$"
    assert (hall.stream.backlog.n_delivered, hall.stream.backlog.n_undelivered) == (0, 4)


@pytest.mark.parametrize("terms", [PLAIN, StreamTerms(policy=DROP)])
def test_a_reader_above_the_limit_is_dropped_at_once(terms: StreamTerms) -> None:
    """Nothing more than the limit is ever held for it."""
    hall = Hall(terms)
    hall.say(6)
    assert hall.is_now(State.OPEN)
    assert hall.say(1)[-1] == EndResponse(FinishReason.SLOW_CLIENT)
    assert hall.budget.n_events == 1


def test_the_end_of_a_sequence_is_judged_too() -> None:
    """Its frame waits like any other."""
    hall = Hall()
    hall.say(3)
    assert hall.stream.finished(1, FinishReason.STOP, [b"1"]) == (SetFlow((2,), Flow.PAUSE),)


def test_only_the_slow_of_two_readers_is_dismissed() -> None:
    """The other one goes on, and the request too."""
    hall = Hall()
    other = hall.attach(0)
    hall.say(4)
    hall.read(other)
    assert hall.wait(2.0) == ()  # behind since now
    hall.say(1)
    hall.read(other)
    assert hall.wait(5.0) == (EndReader(hall.reader, FinishReason.SLOW_CLIENT),)
    hall.say(1)
    assert hall.stream.take(hall.reader) == PendingWrite(b"bye", True)
    assert hall.stream.written(hall.reader, hall.now_s) == () and hall.leave() == ()
    assert hall.read(other)[0] == b"x"
    assert (hall.stream.state, hall.stream.backlog.n_delivered) == (State.OPEN, 6)


def test_a_dismissed_reader_that_takes_nothing_is_disconnected() -> None:
    """It has its time anew before that."""
    hall = Hall()
    other = hall.attach(0)
    hall.say(4)
    hall.read(other)
    hall.wait(0.0)
    hall.wait(5.0)
    assert hall.stream.has_reader(hall.reader)
    assert hall.wait(20.0) == (KeepAlive(other),)
    assert hall.wait(1.0) == (Disconnect(hall.reader),)
    assert not hall.stream.has_reader(hall.reader) and hall.is_now(State.OPEN)


def test_a_reader_that_does_not_take_the_rest_is_disconnected() -> None:
    """After the end only that is waited for, and not for ever."""
    hall = Hall()
    hall.say(1)
    hall.finish()
    assert hall.wait(20.0) == ()
    assert hall.wait(1.0) == (Disconnect(hall.reader),)
    assert (hall.stream.state, hall.stream.backlog.n_undelivered) == (State.CLOSED, 1)


def test_a_reader_that_stalls_below_its_marks_is_dropped() -> None:
    """However little waits for it."""
    hall = Hall()
    hall.say(1)
    assert hall.wait(20.5)[-1] == EndResponse(FinishReason.SLOW_CLIENT)


def test_memory_of_all_bounds_each() -> None:
    """Pressure from elsewhere pauses at the low mark, and drops when it grows."""
    budget = Budget(max_bytes=1 << 20, max_events=20)
    hall = Hall(budget=budget)
    for _ in range(14):
        budget.hold(1)
    assert hall.say(2) == (SetFlow((1, 2), Flow.PAUSE),)
    for _ in range(6):
        budget.hold(1)
    assert hall.wait(0.1)[-1] == EndResponse(FinishReason.SLOW_CLIENT)


# Keeping alive.


def test_a_silent_response_is_kept_alive() -> None:
    """After so long without a write, counted from the last one or from the comment before."""
    hall = Hall(StreamTerms(policy=BY_DEGREES, keep_alive_s=4.0))
    assert hall.wait(4.0) == (KeepAlive(hall.reader),)
    assert hall.read()[0] == b":"
    assert hall.wait(3.0) == ()
    hall.say(1)
    hall.read()
    assert hall.wait(3.0) == ()
    assert hall.wait(1.0) == (KeepAlive(hall.reader),)


def test_nothing_is_kept_alive_before_it_began_or_after_it_ended() -> None:
    """Or where it is off."""
    off = Hall(StreamTerms(keep_alive_s=0.0))
    waiting = Stream([1], PLAIN, roomy(), 0.0)
    waiting.attached(Cursor(0, 0, 0), 0.0)
    over = Hall(KEPT)
    over.finish()
    over.read()
    assert off.wait(99.0) == over.wait(20.0) == waiting.tick(99.0, {}) == ()


# Resumption.


def test_a_reader_that_comes_back_gets_what_it_missed_and_then_what_comes() -> None:
    """Each token is delivered once, however often it is read."""
    hall = Hall(DETACHABLE)
    hall.say(2)
    hall.read()
    assert hall.leave() == () and hall.is_now(State.DETACHED)
    hall.say(1)
    again = hall.attach(1)
    assert hall.is_now(State.OPEN)
    hall.say(1)
    assert hall.read(again)[0] == b"xxx"
    assert (hall.stream.backlog.n_delivered, hall.stream.backlog.end.event_id + 1) == (4, 5)


def test_without_a_reader_it_runs_ahead_only_so_far() -> None:
    """Then it is paused, then parked, and resumed when somebody reads."""
    hall = Hall(DETACHABLE)
    hall.leave()
    assert hall.say(3) == ()
    assert hall.say(1) == (SetFlow((1, 2), Flow.PAUSE),)
    assert hall.wait(1.0) == ()
    assert hall.wait(1.0) == (SetFlow((1, 2), Flow.PARK),)
    place = hall.stream.cursor_after(0)
    assert isinstance(place, Cursor)
    assert hall.stream.attached(place, hall.now_s)[1] == (SetFlow((1, 2), Flow.RUN),)


def test_without_a_reader_nothing_is_pushed_out_that_nobody_got() -> None:
    """It pauses when the window is full, and what still comes then pushes whole events out and counts them."""
    hall = Hall(DETACHABLE)
    hall.leave()
    assert hall.do(hall.stream.delivered(b"x" * 100, 1)) == (SetFlow((1, 2), Flow.PAUSE),)
    assert hall.do(hall.stream.delivered(b"x" * 60, 1)) == ()
    assert hall.stream.cursor_after(0) is Missed.GONE
    assert (hall.stream.backlog.n_undelivered, hall.stream.backlog.n_waiting) == (1, 1)


def test_it_ends_when_nobody_came_back_in_time() -> None:
    """With a reason, for one who comes later; and after a while it is forgotten."""
    hall = Hall(DETACHABLE)
    hall.leave()
    assert hall.wait(9.0) == ()
    assert hall.wait(1.0) == (
        CancelSequences((1, 2), FinishReason.GRACE_EXPIRED),
        EndResponse(FinishReason.GRACE_EXPIRED),
    )
    late = hall.attach(0)
    assert hall.read(late)[0] == b"$"
    assert hall.wait(31.0) == () and hall.is_now(State.CLOSING)
    assert hall.leave(late) == ()
    hall.wait(1.0)
    assert (hall.stream.state, hall.budget.n_bytes) == (State.CLOSED, 0)


def test_an_ended_response_is_kept_for_those_who_come_back() -> None:
    """Its reader may leave before it has everything, and ask for the rest."""
    hall = Hall(KEPT)
    hall.say(2)
    hall.finish()
    assert hall.leave() == () and hall.is_now(State.DRAINING)
    again = hall.attach(1)
    assert hall.read(again)[0] == b"x$"
    assert hall.stream.cursor_after(3) is Missed.AT_END
    assert hall.stream.close(FinishReason.DRAINING, REFUSAL) == ()
    assert hall.stream.reason is FinishReason.STOP


def test_a_response_is_cancelled_when_leaving_means_that_though_it_could_be_resumed() -> None:
    """Without a grace time; and before it was accepted, since nobody knows of it then."""
    kept = Hall(KEPT)
    assert kept.leave() == (CancelSequences((1, 2), FinishReason.DISCONNECTED),)
    early = Stream([1], DETACHABLE, roomy(), 0.0)
    reader_id, _ = early.attached(Cursor(0, 0, 0), 0.0)
    assert early.lost(reader_id, 0.0) == (CancelSequences((1,), FinishReason.DISCONNECTED),)


def test_a_slow_reader_leaves_a_response_that_waits_for_it() -> None:
    """It is told, the response is detached, and it may come back for what it missed."""
    hall = Hall(DETACHABLE)
    hall.say(4)
    assert hall.wait(5.0) == (EndReader(hall.reader, FinishReason.SLOW_CLIENT), SetFlow((1, 2), Flow.PARK))
    assert hall.is_now(State.DETACHED)
    assert hall.read()[0] == b"bye" and hall.leave() == ()
    assert hall.is_now(State.DETACHED)
    assert hall.read(hall.attach(0)) == (b"xxxx", ())


def test_what_is_kept_for_a_replay_goes_first_when_memory_is_short() -> None:
    """A reader that asks for it is told that it is gone."""
    budget = Budget(max_bytes=1 << 20, max_events=4)
    hall = Hall(KEPT, budget)
    hall.say(2)
    hall.read()
    budget.hold(1)
    budget.hold(1)
    hall.wait(0.1)
    assert hall.stream.cursor_after(0) is Missed.GONE and budget.n_events == 2


# Events that pass the backlog by.


def idle_hall(terms: StreamTerms = PLAIN) -> Hall:
    """A stream whose reader has its first event."""
    hall = Hall(terms)
    hall.say(1)
    hall.read()
    return hall


def test_an_event_passes_the_backlog_when_its_reader_has_everything() -> None:
    """The stream is afterwards as if the event had waited. Tokens that had no text go with it."""
    waited, passed = idle_hall(), idle_hall()
    for hall in (waited, passed):
        hall.now_s = 2.0
        hall.do(hall.stream.delivered(b"", 3))
    waited.do(waited.stream.delivered(b"xy", 2))
    waited.read()
    assert passed.stream.idle_reader == passed.reader
    assert passed.stream.passed(passed.reader, 2, 2, 2.0, 0) == ()
    for hall in (waited, passed):
        backlog = hall.stream.backlog
        assert (backlog.end, backlog.n_delivered, backlog.n_waiting) == (Cursor(2, 3, 6), 6, 0)
        assert (hall.budget.n_bytes, hall.budget.n_events, hall.stream.quiet_until_s) == (
            0,
            0,
            2.0 + hall.terms.keep_alive_s,
        )
        assert (hall.say(1), hall.read()[0]) == ((), b"x")


@pytest.mark.parametrize(("unsent_bytes", "effects"), [(0, ()), (150, (SetFlow((1, 2), Flow.PAUSE),))])
def test_bytes_of_a_passed_event_that_the_transport_holds_count(unsent_bytes: int, effects: tuple[Effect, ...]) -> None:
    """Three more events alone are not too many."""
    hall = idle_hall()
    hall.do(hall.stream.passed(hall.reader, 150, 1, 0.0, unsent_bytes))
    assert hall.say(3) == effects


def test_no_event_passes_a_reader_that_lacks_something() -> None:
    """Or one whose events are kept, or one of two, or one that was dismissed, or while there is pressure."""
    behind, noticed, writing, ended = idle_hall(), idle_hall(), idle_hall(), idle_hall()
    behind.say(1)
    noticed.stream.set_status_line(b":")
    writing.say(1)
    writing.stream.take(writing.reader)
    ended.finish()
    fresh, kept, pressed = Hall(), idle_hall(KEPT), idle_hall()
    pressed.budget.hold(1 << 20)
    two = idle_hall()
    two.read(two.attach(1))
    for hall in (behind, noticed, writing, ended, fresh, kept, pressed, two):
        assert hall.stream.idle_reader is None


# All of it, in any order.


@dataclass
class Listener:
    """A reader as its writer sees it: what it was written, and what is being written."""

    start: int
    heard: bytes = b""
    pending: PendingWrite | None = None
    is_over: bool = False

    def check(self, last_id: int, *, may_skip: bool) -> None:
        """Every event once and in order, from where it came in; only who was too slow lacks some before the last."""
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
    """A shell and its readers, which keep the rules and do everything else that they please."""

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
        self.stream = Watched(range(n), self.terms, self.budget)
        self.live = set(range(n))
        self.n_unaccepted = n
        self.effects: list[Effect] = []
        self.runs = True
        self.listeners: dict[int, Listener] = {}
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
            self.listeners[reader_id] = Listener(event_id)
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
        listener, frame = self.listeners[reader_id], self.frame()
        assert listener.pending is None
        listener.heard += frame
        listener.check(self.last_id, may_skip=False)
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

    @precondition(lambda self: self.listeners)
    @rule(data=st.data(), is_slow=st.booleans(), unsent_bytes=st.sampled_from([0, 0, 3, 120]))
    def take(self, data: st.DataObject, is_slow: bool, unsent_bytes: int) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.listeners)))
        listener = self.listeners[reader_id]
        batch = self.stream.take(reader_id)
        if batch is not None:
            assert listener.pending is None and batch.data and not listener.is_over
            listener.pending = batch
            if not is_slow:
                self.write(reader_id, unsent_bytes)

    @precondition(lambda self: any(one.pending for one in self.listeners.values()))
    @rule(data=st.data(), unsent_bytes=st.sampled_from([0, 0, 3, 120]))
    def catch_up(self, data: st.DataObject, unsent_bytes: int) -> None:
        late = sorted(reader_id for reader_id, one in self.listeners.items() if one.pending)
        self.write(data.draw(st.sampled_from(late)), unsent_bytes)

    def write(self, reader_id: int, unsent_bytes: int) -> None:
        listener = self.listeners[reader_id]
        assert listener.pending is not None
        listener.heard += bytes(listener.pending.data).replace(b":", b"")
        listener.is_over, listener.pending = listener.pending.is_last, None
        listener.check(self.last_id, may_skip=self.stream.reason is FinishReason.SLOW_CLIENT)
        self.do(self.stream.written(reader_id, self.now_s, unsent_bytes))

    @precondition(lambda self: self.listeners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.listeners)))
        self.do(self.stream.lost(reader_id, self.now_s))
        assert not self.stream.has_reader(reader_id)
        if self.listeners[reader_id].pending is None:
            del self.listeners[reader_id]

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 11.0, 40.0]), has_sent=st.booleans())
    def wait(self, seconds: float, has_sent: bool) -> None:
        self.now_s += seconds
        self.do(self.stream.tick(self.now_s, dict.fromkeys(self.listeners, 0) if has_sent else {}))

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
    """Readers leave, come back, and find what they missed."""

    retentions = [DETACHABLE.retention]


SETTINGS = settings(max_examples=50, stateful_step_count=20, deadline=None, derandomize=True)
TestStream = StreamMachine.TestCase
TestStream.settings = SETTINGS
TestDetachable = DetachableMachine.TestCase
TestDetachable.settings = SETTINGS


def test_notice_is_told_to_those_that_have_everything() -> None:
    """It is no event: who comes later gets what holds then, and nothing of it once an event has come."""
    hall = Hall(KEPT)
    hall.stream.set_status_line(b"1")
    assert hall.read()[0] == b"1"
    hall.stream.set_status_line(b"2")
    other = hall.attach(0)
    assert (hall.read()[0], hall.read(other)[0]) == (b"2", b"2")
    hall.stream.set_status_line(b"3")
    hall.say(1)
    assert (hall.read()[0], hall.read(other)[0]) == (b"3x", b"3x")
    assert hall.read(hall.attach(0))[0] == b"x"
    assert (hall.stream.backlog.n_delivered, hall.stream.backlog.end.event_id + 1) == (1, 2)


def test_kept_events_are_gone_when_the_response_is_evicted() -> None:
    """Of a response that has ended and that nobody reads; of any other nothing is."""
    hall = Hall(KEPT)
    hall.say(2)
    hall.stream.evict_if_idle()
    assert hall.is_now(State.OPEN)
    hall.finish()
    hall.stream.evict_if_idle()
    assert hall.is_now(State.DRAINING) and hall.read()[0] == b"xx$"
    hall.leave()
    assert hall.is_now(State.DRAINING) and hall.budget.n_events == 3
    hall.stream.evict_if_idle()
    assert hall.is_now(State.CLOSED) and hall.budget.n_events == 0
    assert hall.stream.cursor_after(0) is Missed.GONE and hall.stream.cursor_after(3) is Missed.AT_END


def test_it_has_ended_when_it_was_concluded() -> None:
    """Though nothing has happened for long: from then on its time to be kept counts, and not from before."""
    hall = Hall(KEPT, rids=(1,))
    for effect in hall.stream.finished(1, FinishReason.STOP):
        assert isinstance(effect, EndResponse)
    hall.stream.conclude(b"$", now_s=100.0)
    hall.now_s = 100.0
    assert hall.stream.ended_s == 100.0 and hall.read()[0] == b"$"
    hall.leave()
    hall.wait(29.9)
    assert hall.is_now(State.DRAINING)
    hall.wait(0.1)
    assert hall.is_now(State.CLOSED)


# Whole answers.


def test_what_a_whole_answer_gathers_is_in_the_budget_and_goes_in_pieces() -> None:
    """From the first token on; each piece is given back when it was written, and the tokens count with the last."""
    budget = roomy()
    hall = Hall(budget=budget)
    assert hall.do(hall.stream.gathered(40_000, 2)) == ()
    assert hall.stream.backlog.n_waiting == 2 and budget.n_bytes == 40_000
    for rid in hall.rids:
        effects = hall.stream.finished(rid, FinishReason.STOP)
    assert effects == (EndResponse(FinishReason.STOP),)
    hall.stream.conclude(b"c" * 20_000, [b"a" * 20_000, b"b" * 20_000])
    left = [budget.n_bytes]
    for _ in range(3):
        assert hall.stream.backlog.n_delivered == 0
        hall.read()
        left.append(budget.n_bytes)
    assert left == [60_000, 40_000, 20_000, 0]
    assert hall.is_now(State.CLOSED) and hall.stream.backlog.n_delivered == 2


def test_a_whole_answer_that_is_too_large_is_ended() -> None:
    """With an error of its own, and nothing of it is held."""
    budget = Budget(max_bytes=40_000, max_events=100)
    hall = Hall(budget=budget)
    assert hall.do(hall.stream.gathered(30_000, 1)) == ()
    cancel, end = hall.do(hall.stream.gathered(1, 1))
    assert cancel == CancelSequences((1, 2), FinishReason.ERROR)
    assert isinstance(end, EndResponse) and end.refusal is not None and end.refusal.code == "answer_too_large"
    assert budget.n_bytes == len(b"$")


def test_a_whole_answer_that_grows_while_memory_is_full_is_ended() -> None:
    """To pause it would give nothing back. One below its low mark goes on."""
    budget = Budget(max_bytes=1_000, max_events=100)
    hall = Hall(budget=budget)
    budget.hold(990)
    assert hall.do(hall.stream.gathered(50, 1)) == ()
    cancel, end = hall.do(hall.stream.gathered(1, 1))
    assert cancel == CancelSequences((1, 2), FinishReason.ERROR)
    assert isinstance(end, EndResponse) and end.refusal is not None and end.refusal.status == 503
    assert budget.n_bytes == 990 + len(b"$")


def test_nobody_hoards_what_is_over_while_memory_is_full() -> None:
    """Its readers have a moment; without pressure they have the stall timeout."""
    budget = Budget(max_bytes=1_000, max_events=100)
    hall = Hall(budget=budget)
    hall.do(hall.stream.gathered(300, 1))
    for rid in hall.rids:
        hall.stream.finished(rid, FinishReason.STOP)
    hall.stream.conclude(b"b" * 150, [b"a" * 150])
    assert hall.wait(2.5) == ()
    budget.hold(800)
    assert hall.wait(0.25) == (Disconnect(hall.reader),)
    assert budget.n_bytes == 800 and hall.stream.backlog.n_undelivered == 1


def test_a_whole_answer_goes_on_without_a_reader_where_one_may_return() -> None:
    """Detached, it gathers, and is paused when it is ahead; once nothing lives it can gather nothing."""
    hall = Hall(DETACHABLE)
    hall.leave()
    assert hall.do(hall.stream.gathered(10, 4)) == (SetFlow((1, 2), Flow.PAUSE),)
    hall.do(hall.stream.close(FinishReason.DRAINING, REFUSAL))
    with pytest.raises(InvariantError):
        hall.stream.gathered(1, 1)
