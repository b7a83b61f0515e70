"""The state of one response: the table is total, cleanup is welcome everywhere, and there is one terminal."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.errors import InvariantError, Refusal
from sluiceway.stream.session import TRANSITIONS, CancelUpstream, Effect, EndResponse, Input, Session, State
from sluiceway.types import FinishReason

REFUSAL = Refusal(status=500, code="fault", message="It broke.")
CALLS: dict[str, Callable[[Session], object]] = {
    "accepted": Session.accepted,
    "delivered": lambda session: session.delivered(b"x", 1),
    "finished": lambda session: session.finished(1),
    "failed": lambda session: session.failed(1, FinishReason.DEADLINE, REFUSAL),
    "rejected": lambda session: session.rejected(REFUSAL),
    "written": Session.written,
    "lost": Session.lost,
    "close": lambda session: session.close(FinishReason.DRAINING, REFUSAL),
}


def session_in(state: State) -> Session:
    """A session of the sequences 1 and 2 that came to this state in the ordinary way."""
    session = Session([1, 2])
    match state:
        case State.DRAINING:
            session.finished(1)
            session.finished(2)
        case State.CLOSING:
            session.close(FinishReason.DRAINING, REFUSAL)
        case State.CLOSED:
            session.lost()
        case State.OPEN:
            pass
    assert session.state is state
    return session


@pytest.mark.parametrize(("state", "name"), list(itertools.product(State, CALLS)))
def test_every_pair_is_in_the_table_or_raises(state: State, name: str) -> None:
    """Open takes everything; afterwards only what a writer or a cleanup path may say."""
    session = session_in(state)
    if state is State.OPEN or name in ("written", "lost", "close"):
        CALLS[name](session)
        assert session.state in TRANSITIONS.values()
    else:
        with pytest.raises(InvariantError, match=state.value):
            CALLS[name](session)
        assert session.state is state


def test_the_table_holds_exactly_these_pairs() -> None:
    """An event of a sequence belongs to an open session; a writer's and a cleanup's word to every state."""
    anywhere = {Input.WRITTEN, Input.EMPTIED, Input.LOST, Input.CLOSE}
    expected = {(State.OPEN, what) for what in Input} | set(itertools.product(State, anywhere))
    assert TRANSITIONS.keys() == expected


def test_the_response_drains_when_its_last_sequence_finished() -> None:
    """Not before; and it is closed once all is written."""
    session = Session([1, 2])
    states = [session.state]
    assert session.finished(2) == ()
    states.append(session.state)
    assert session.finished(1) == (EndResponse(None),)
    states.append(session.state)
    session.outbox.push(b"end")
    session.written()
    states.append(session.state)
    assert session.take().data == b"end"
    session.written()
    states.append(session.state)
    assert states == [State.OPEN, State.OPEN, State.DRAINING, State.DRAINING, State.CLOSED]


def test_an_open_session_stays_open_when_it_is_written_empty() -> None:
    """More may come."""
    session = Session([1])
    session.delivered(b"x", 1)
    session.written()
    session.take()
    session.written()
    assert session.state is State.OPEN


def test_it_is_accepted_when_every_sequence_is() -> None:
    """A response of two sequences needs two."""
    session = Session([1, 2])
    session.accepted()
    assert not session.is_accepted
    session.accepted()
    assert session.is_accepted


def test_only_what_lives_is_cancelled_when_the_reader_is_lost() -> None:
    """Nobody is told, since nobody is there; a second loss does nothing."""
    session = Session([1, 2, 3])
    session.finished(2)
    assert session.lost() == (CancelUpstream((1, 3), FinishReason.CANCELLED),)
    assert session.lost() == ()


def test_the_others_are_cancelled_when_one_sequence_fails() -> None:
    """With its reason; the response ends with its refusal."""
    session = Session([1, 2])
    effects = session.failed(1, FinishReason.DEADLINE, REFUSAL)
    assert effects == (CancelUpstream((2,), FinishReason.DEADLINE), EndResponse(REFUSAL))


def test_nothing_is_cancelled_when_the_only_sequence_fails() -> None:
    """Its terminal has come."""
    assert Session([1]).failed(1, FinishReason.ERROR, REFUSAL) == (EndResponse(REFUSAL),)


def test_nothing_is_cancelled_when_the_request_is_rejected() -> None:
    """Nothing of it is held upstream."""
    session = Session([1, 2])
    assert session.rejected(REFUSAL) == (EndResponse(REFUSAL),)
    assert session.lost() == ()


def test_it_is_told_why_when_it_is_closed_early() -> None:
    """Once: the first cause wins."""
    session = Session([1])
    effects = session.close(FinishReason.DRAINING, REFUSAL)
    assert effects == (CancelUpstream((1,), FinishReason.DRAINING), EndResponse(REFUSAL))
    assert session.close(FinishReason.ERROR, REFUSAL) == ()


def test_a_stranger_cannot_finish() -> None:
    """An id of another session is our bug."""
    with pytest.raises(InvariantError, match="sequence 9"):
        Session([1, 2]).finished(9)


class SessionMachine(RuleBasedStateMachine):
    """A hub and a writer that keep the rules, in any order: one terminal, one cancel, nothing lost or told twice."""

    @initialize(n=st.integers(1, 4))
    def begin(self, n: int) -> None:
        self.session = Session(range(n))
        self.live = set(range(n))
        self.effects: list[Effect] = []
        self.pushed = self.taken = b""

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        self.effects += effects
        for effect in effects:
            match effect:
                case CancelUpstream(rids):
                    assert rids and set(rids) == self.live
                    self.live.clear()
                case EndResponse():
                    self.session.outbox.push(b"$")
                    self.pushed += b"$"

    @precondition(lambda self: self.live)
    @rule(n_tokens=st.integers(0, 3))
    def deliver(self, n_tokens: int) -> None:
        self.pushed += b"t" * n_tokens
        self.session.delivered(b"t" * n_tokens, n_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), reason=st.sampled_from([None, FinishReason.ERROR]))
    def end(self, data: st.DataObject, reason: FinishReason | None) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(rid)
        if reason is None:
            self.carry_out(self.session.finished(rid))
        else:
            self.carry_out(self.session.failed(rid, reason, REFUSAL))

    @precondition(lambda self: self.live)
    @rule()
    def reject(self) -> None:
        self.live.clear()
        self.carry_out(self.session.rejected(REFUSAL))

    @rule()
    def write(self) -> None:
        self.taken += self.session.take().data
        self.session.written()

    @rule()
    def lose(self) -> None:
        self.carry_out(self.session.lost())
        assert self.session.state is State.CLOSED and not self.live

    @rule()
    def close(self) -> None:
        self.carry_out(self.session.close(FinishReason.DRAINING, REFUSAL))
        assert self.session.state is not State.OPEN and not self.live

    @invariant()
    def holds(self) -> None:
        ends = sum(isinstance(effect, EndResponse) for effect in self.effects)
        assert ends <= 1 and sum(isinstance(effect, CancelUpstream) for effect in self.effects) <= 1
        assert (self.session.state is State.OPEN) == bool(self.live)
        assert ends == 1 or self.session.state in (State.OPEN, State.CLOSED)
        assert self.pushed.startswith(self.taken)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
