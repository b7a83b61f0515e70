"""One response, from the request until nothing of it is held: it owns its events, its readers and its sequences.

It is told facts (`delivered`, `written`, `lost`, ...), wishes (`close`) and the time (`tick`), moves by the table of
`lifecycle`, and returns effects for its shell to carry out, in order. Nothing here waits, so nothing here can be
cancelled half way. Between ticks the time is that of the last fact that came with one.

Of several readers, one that is slow costs only itself: the request is paused when all are behind, and a reader that is
too slow is dismissed alone. When it was the only one, the response is ended with `slow_client`, or goes on without a
reader where its terms say that one may come back.

What this file does not know: protocols, sockets, clocks, the processes upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluiceway.errors import InvariantError, Refusal
from sluiceway.refusals import OUT_OF_MEMORY, answer_too_large
from sluiceway.response.audience import Audience
from sluiceway.response.budget import Budget
from sluiceway.response.flow import Flow
from sluiceway.response.keeping import Keeping
from sluiceway.response.lifecycle import (
    ENDED,
    LIVE,
    TRANSITIONS,
    Disconnect,
    Effect,
    EndResponse,
    Input,
    KeepAlive,
    ReaderId,
    State,
    meaning_of_loss,
    next_state,
)
from sluiceway.response.policy import Decision, Pressure
from sluiceway.response.reader import Batch
from sluiceway.response.replay import NOTHING, Missed, Place, Replay
from sluiceway.response.terms import Terms
from sluiceway.response.upstream import Upstream
from sluiceway.types import FinishReason, Piece, Rid


class Stream:
    """See the module's docstring. It begins open and without a reader: the first is attached before anything else."""

    __slots__ = (
        "_audience",
        "_budget",
        "_flow",
        "_keeping",
        "_now_s",
        "_replay",
        "_upstream",
        "ended_s",
        "opened_s",
        "reason",
        "state",
        "terms",
    )

    def __init__(self, rids: Iterable[Rid], terms: Terms, budget: Budget, now_s: float) -> None:
        self._upstream = Upstream(rids)
        self.terms = terms
        self._replay = Replay(budget, NOTHING if terms.retention is None else terms.retention.window)
        self._budget = budget
        self._audience = Audience(terms.policy)
        self._flow = Flow(terms, self._audience, self._replay, budget)
        self._now_s = now_s
        self._keeping = Keeping(terms.retention, now_s)
        self.state = State.OPEN
        self.opened_s = now_s
        self.ended_s: float | None = None
        self.reason: FinishReason | None = None
        """Why it ended, or its sequences so far; None before that."""

    @property
    def is_accepted(self) -> bool:
        """Whether every sequence was admitted: only then is the response certain to be a stream of tokens."""
        return self._upstream.is_accepted

    @property
    def next_event_id(self) -> int:
        """The id of the event that is delivered next."""
        return self._replay.end.event_id + 1

    @property
    def n_delivered(self) -> int:
        """Tokens that some reader got."""
        return self._replay.n_delivered

    @property
    def n_undelivered(self) -> int:
        """Tokens that no reader will get. What is in neither number still waits."""
        return self._replay.n_undelivered

    @property
    def n_waiting(self) -> int:
        """Tokens that no reader has got yet."""
        return self._replay.n_waiting

    @property
    def quiet_until_s(self) -> float:
        """Before that a tick would tell nothing, unless something else happens; in the past where each tick counts."""
        if self.state is State.OPEN and not self._flow.is_held:
            return self._audience.quiet_until_s(self._replay.end, self.terms.keep_alive_s)
        is_kept = self.state in ENDED and self.terms.retention is not None and not self._audience.readers
        return self._keeping.until_s if is_kept else self._now_s

    @property
    def held_bytes(self) -> int:
        """Bytes of its events that are held, for readers or for a replay."""
        return self._replay.held_bytes

    def has_reader(self, reader_id: ReaderId) -> bool:
        """Whether this reader gets anything more."""
        return reader_id in self._audience.readers

    def place_after(self, event_id: int) -> Place | Missed:
        """Where a reader that has got this event is to be attached; 0 for one that has got nothing."""
        return self._replay.place_after(event_id)

    # From upstream.

    def accepted(self) -> None:
        """One more sequence was admitted."""
        self._move(Input.ACCEPTED)
        self._upstream.accepted()

    def delivered(self, frame: bytes, n_tokens: int, before: Iterable[bytes] = ()) -> tuple[Effect, ...]:
        """An event is ready, and others before it; an empty one (text is held back) brings its tokens only."""
        if self.state is not State.OPEN:  # in which it stays: with each token that need not be looked up
            self._move(Input.DELIVERED)
        if self._replay.notice:
            self._audience.pass_notice(self._replay, self._now_s)
        for earlier in before:
            self._replay.push(earlier, 0)
        self._replay.push(frame, n_tokens)
        if self.state is State.OPEN and self._flow.is_calm:
            return ()
        if self.state is State.DETACHED:
            self._trim()
        return self._regulate()

    def gathered(self, n_bytes: int, n_tokens: int) -> tuple[Effect, ...]:
        """A whole answer has grown by this much.

        It is ended if it is too large, or grows while memory is full, since no reader can make room before its end.
        """
        if self.state is not State.OPEN:
            self._move(Input.DELIVERED)
        self._replay.gather(n_bytes, n_tokens)
        gathered_bytes, budget = self._replay.gathered_bytes, self._budget
        if gathered_bytes > budget.max_answer_bytes:
            return self.close(FinishReason.ERROR, answer_too_large(budget.max_answer_bytes))
        if budget.pressure is Pressure.FULL and gathered_bytes > self.terms.policy.low_mark_bytes:
            return self.close(FinishReason.ERROR, OUT_OF_MEMORY)
        return () if self.state is State.OPEN and self._flow.is_calm else self._regulate()

    def told(self, notice: bytes) -> None:
        """How things stand, for readers that have everything; a later notice takes its place, an event ends it."""
        self._replay.notice = notice

    def finished(self, rid: Rid, reason: FinishReason, frames: Iterable[bytes] = ()) -> tuple[Effect, ...]:
        """A sequence ended well; the frames say so."""
        self._move(Input.FINISHED if self._upstream.has_but(rid) else Input.COMPLETED)
        self._upstream.settle(rid)
        for frame in frames:
            self._replay.push(frame, 0)
        if self.reason is not FinishReason.LENGTH:
            self.reason = reason
        if not self._upstream:
            return (EndResponse(self.reason),)
        return () if self.state is State.OPEN and self._flow.is_calm else self._regulate()

    def failed(self, rid: Rid, reason: FinishReason, refusal: Refusal) -> tuple[Effect, ...]:
        """A sequence ended badly, and with it the response."""
        self._move(Input.FAILED)
        self._upstream.settle(rid)
        return self._end(reason, refusal)

    def rejected(self, refusal: Refusal) -> tuple[Effect, ...]:
        """The whole request was refused upstream, where nothing of it is held."""
        self._move(Input.REJECTED)
        self._upstream.forget()
        return self._end(FinishReason.ERROR, refusal)

    def conclude(self, frame: Piece, before: Iterable[Piece] = (), now_s: float | None = None) -> None:
        """Carry out `EndResponse`. Of an early end it is no carrier: tokens that are in no event so far are in none."""
        if self.state not in ENDED:
            raise InvariantError(f"a response that is {self.state.value} cannot be concluded")
        if self.state is State.CLOSING:
            self._replay.forfeit()
        self._replay.conclude(frame, before)
        self._now_s = self._now_s if now_s is None else now_s
        self.ended_s = self._keeping.since_s = self._now_s
        self._close_if_emptied()

    # From readers.

    def attached(self, place: Place, now_s: float) -> tuple[ReaderId, tuple[Effect, ...]]:
        """A reader is there and goes on from this place, which `place_after` gave."""
        self._move(Input.ATTACHED)
        self._now_s = now_s
        return self._audience.admit(place, self._replay.end, now_s), self._regulate()

    def take(self, reader_id: ReaderId) -> Batch | None:
        """What is to be written to this reader next; None if nothing is. The writer says `written` when it was."""
        reader = self._audience.readers.get(reader_id)
        return None if reader is None else reader.take(self._replay)

    def written(self, reader_id: ReaderId, now_s: float, unsent_bytes: int = 0) -> tuple[Effect, ...]:
        """What was taken was handed to the transport, which holds that many bytes now. Idle for a lost reader."""
        if self.state is not State.OPEN:
            self._move(Input.WRITTEN)
        self._now_s = now_s
        reader, replay = self._audience.readers.get(reader_id), self._replay
        if reader is None:
            return ()
        reader.wrote(replay.end, now_s, unsent_bytes)
        if not reader.is_dismissed:
            replay.delivered(reader.place)
        self._trim()
        if replay.is_ended:
            self._close_if_emptied()
        # Whoever got something and has nothing unsent stands better than before.
        return () if self._audience.is_at_ease and not unsent_bytes else self._regulate()

    def interject(self, reader_id: ReaderId, frame: bytes) -> None:
        """Carry out `EndReader` or `KeepAlive`: write this to the reader alone. Idle for a lost one."""
        reader = self._audience.readers.get(reader_id)
        if reader is not None:
            reader.set_aside(frame, self._now_s)

    def lost(self, reader_id: ReaderId, now_s: float) -> tuple[Effect, ...]:
        """Nobody writes to this reader any more: it has left, or has everything. Idempotent, in every state."""
        self._now_s = now_s
        was_there = self._audience.readers.pop(reader_id, None) is not None
        stays = not was_there or self._audience.listens
        meaning = meaning_of_loss(self.state, stays=stays, may_return=self._may_return, is_kept=self._is_kept)
        was_open = self.state is State.OPEN
        self._move(meaning)
        if meaning is Input.DESERTED and was_open:
            self.reason, self.ended_s = FinishReason.DISCONNECTED, now_s
            return self._upstream.cancel(FinishReason.DISCONNECTED)
        if meaning is Input.LEFT:
            self._keeping.since_s = now_s
        self._trim()
        return self._regulate()

    # From the server.

    def tick(self, now_s: float, unsent_bytes: Mapping[ReaderId, int]) -> tuple[Effect, ...]:
        """Time has passed, and transports hold so much, where that was measured. To be told several times a second."""
        self._move(Input.TICKED)
        self._now_s = now_s
        self._audience.observe(self._replay.end, now_s, unsent_bytes)
        effects = [*self._give_up_the_stalled(), *self._expire()]
        self._trim()
        return (*effects, *self._regulate(), *self._keep_alive())

    def close(self, cause: FinishReason, refusal: Refusal | None = None) -> tuple[Effect, ...]:
        """End the response early and tell its readers why. Idempotent, in every state: the first cause wins."""
        was_live = self.state in LIVE
        self._move(Input.CLOSE)
        return self._end(cause, refusal) if was_live else ()

    def give_way(self) -> None:
        """Keep nothing any more of a response that has ended and that nobody reads. Idle for any other."""
        if self.state in ENDED and not self._audience.readers:
            self._move(Input.EXPIRED)

    # Flow.

    def _regulate(self) -> tuple[Effect, ...]:
        if self.state is State.OPEN:
            return self._heed_readers()
        if self.state is State.DETACHED:
            return self._flow.unattended(self._upstream, self._now_s)
        return ()

    def _heed_readers(self) -> tuple[Effect, ...]:
        decision, effects = self._flow.attended(self._upstream, self._now_s, may_return=self._may_return)
        if decision is not Decision.DROP:
            return effects
        if not self._may_return:
            return self._end_for_the_slow()
        self._move(Input.LEFT)
        self._keeping.since_s = self._now_s
        return (*effects, *self._regulate())

    def _end_for_the_slow(self) -> tuple[Effect, ...]:
        """All that read are too slow: what waited for them goes, so that they need not take it before the reason."""
        self._move(Input.CLOSE)
        self._replay.give_up()
        self._trim()
        return self._end(FinishReason.SLOW_CLIENT, None)

    # Ends.

    @property
    def _may_return(self) -> bool:
        """Nobody knows of a response that was not accepted, so nobody comes back to it."""
        return self.terms.may_return and self.is_accepted

    @property
    def _is_kept(self) -> bool:
        """Whether something is kept for readers that come once it has ended; never of a request that was refused."""
        return self.terms.retention is not None and self.is_accepted

    def _give_up_the_stalled(self) -> list[Effect]:
        stalled = self._audience.stalled(self._replay.end, self._now_s, is_over=self.state in ENDED)
        if self.state in ENDED and self.ended_s is not None and self._budget.pressure is Pressure.FULL:
            # Of what is not generated any more nothing can be paused.
            stalled = [*{*stalled, *self._audience.hoarding(self._replay.end, self._now_s, self.ended_s)}]
        effects = list[Effect]()
        for reader_id in stalled:
            effects += (Disconnect(reader_id), *self.lost(reader_id, self._now_s))
        return effects

    def _expire(self) -> tuple[Effect, ...]:
        if self.state is State.DETACHED and self._keeping.is_past_grace(self._now_s):
            self._move(Input.EXPIRED)
            return self._end(FinishReason.GRACE_EXPIRED, None)
        if not self._audience.readers and self._keeping.is_past_end(self._now_s):
            self.give_way()
        return ()

    def _keep_alive(self) -> list[Effect]:
        after_s = self.terms.keep_alive_s
        if not after_s or self.state is not State.OPEN or not self.is_accepted:
            return []
        return [KeepAlive(one) for one in self._audience.silent(self._replay.end, self._now_s, after_s)]

    def _end(self, reason: FinishReason, refusal: Refusal | None) -> tuple[Effect, ...]:
        self.reason = reason
        return (*self._upstream.cancel(reason), EndResponse(reason, refusal))

    def _trim(self) -> None:
        self._replay.trim(self._audience.slowest(self._replay.end))

    def _close_if_emptied(self) -> None:
        is_over = self.state in ENDED and self._replay.is_ended and not self._is_kept
        if is_over and self._audience.is_done(self._replay.end):
            self._move(Input.EMPTIED)

    def _move(self, given: Input) -> None:
        self.state = TRANSITIONS.get((self.state, given)) or next_state(self.state, given)
        if self.state is State.CLOSED:
            self._audience.readers.clear()
            self._replay.discard()
