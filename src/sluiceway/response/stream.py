"""One response as a pure object: its sequences, its events and its readers, from the request until nothing is held.

Its owner reports facts (`delivered`, `written`, `lost`, ...), requests (`close`) and the time (`tick`). The stream
moves by the table of `lifecycle` and returns effects, which its owner carries out in order. Nothing here waits, so
nothing here can be cancelled half way. Between ticks the current time is that of the last fact that came with a time.

Of several readers, a slow one costs only itself. The sequences are paused when all readers are behind, and a reader
that is too slow is dismissed alone. When it was the only one, the response ends with `slow_client`, or goes on without
a reader if its terms let one come back.

What this file does not know: protocols, sockets, clocks, other processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sluiceway.errors import InvariantError, Refusal
from sluiceway.refusals import OUT_OF_MEMORY, answer_too_large
from sluiceway.response.backlog import NOTHING, Backlog, Cursor, Missed
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import (
    ENDED,
    LIVE,
    TRANSITIONS,
    CancelSequences,
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
from sluiceway.response.readers import Backpressure, PendingWrite, Readers
from sluiceway.response.terms import StreamTerms
from sluiceway.types import FinishReason, Piece, Rid

_OPEN = State.OPEN  # each event asks for it, and Python 3.11 takes long to find a member of an enumeration


class Stream:
    """The state of one response. It begins open and without a reader; the first one attaches before anything else."""

    __slots__ = (
        "_backpressure",
        "_budget",
        "_live",
        "_n_unaccepted",
        "_now_s",
        "_readers",
        "_unattended_since_s",
        "backlog",
        "ended_s",
        "opened_s",
        "reason",
        "state",
        "terms",
    )

    def __init__(self, rids: Iterable[Rid], terms: StreamTerms, budget: Budget, now_s: float) -> None:
        self.terms = terms
        self._live = dict.fromkeys(rids)
        """Sequences that run in the engine."""
        self._n_unaccepted = len(self._live)
        self._budget = budget
        self.backlog = Backlog(budget, NOTHING if terms.retention is None else terms.retention.window)
        """Its events. Others read it; only the stream changes it."""
        self._readers = Readers(terms.policy)
        self._backpressure = Backpressure(terms, self._readers, self.backlog, budget)
        self._now_s = now_s
        self._unattended_since_s = now_s
        """When the last reader left, or the response ended."""
        self.state = State.OPEN
        self.opened_s = now_s
        self.ended_s: float | None = None
        self.reason: FinishReason | None = None
        """Why the response, or its last finished sequence, ended; None before that."""

    @property
    def is_accepted(self) -> bool:
        """True when every sequence was accepted: only then is the response certain to be a stream of tokens."""
        return not self._n_unaccepted

    @property
    def quiet_until_s(self) -> float:
        """The time before which a tick changes nothing, if nothing else happens; in the past if every tick counts."""
        if self.state is State.OPEN and not self._backpressure.is_held:
            return self._readers.quiet_until_s(self.backlog.end, self.terms.keep_alive_s)
        if self.state in ENDED and self.terms.retention is not None and not self._readers.by_id:
            return self._evicted_at_s
        return self._now_s

    @property
    def idle_reader(self) -> ReaderId | None:
        """The only reader, if the next event may be written to it before the stream gets the event (see `passed`).

        Such a reader has every event and is not behind, and the stream keeps no event.
        """
        readers, backlog = self._readers, self.backlog
        if self.state is not _OPEN or not readers.is_at_ease or self._budget.pressure or backlog.status_line:
            return None
        if len(readers.by_id) != 1 or self.terms.retention is not None:
            return None
        ((reader_id, reader),) = readers.by_id.items()
        return reader_id if reader.is_done(backlog.end) and not reader.is_dismissed else None

    def has_reader(self, reader_id: ReaderId) -> bool:
        """True while this reader may get anything more."""
        return reader_id in self._readers.by_id

    def cursor_after(self, event_id: int) -> Cursor | Missed:
        """Where a reader attaches that has got this event; 0 for a reader that has got nothing."""
        return self.backlog.cursor_after(event_id)

    # From the engine.

    def accepted(self) -> None:
        """Note that one more sequence was accepted."""
        self._move(Input.ACCEPTED)
        self._n_unaccepted -= 1

    def delivered(self, frame: bytes, n_tokens: int, before: Iterable[bytes] = ()) -> tuple[Effect, ...]:
        """Add an event, after the events `before`. An empty frame (text is held back) adds its tokens only."""
        backlog, readers = self.backlog, self._readers
        if self.state is not _OPEN:  # in which it stays; this runs for each token, so the table is not asked
            self._move(Input.DELIVERED)
        if backlog.status_line:
            readers.remove_status_line(backlog, self._now_s)
        for earlier in before:
            backlog.push(earlier, 0)
        backlog.push(frame, n_tokens)
        if self.state is _OPEN and not self._budget.pressure and readers.is_calm(backlog.end):
            return ()
        if self.state is State.DETACHED:
            self._trim()
        return self._regulate()

    def passed(
        self, reader_id: ReaderId, n_bytes: int, n_tokens: int, now_s: float, unsent_bytes: int
    ) -> tuple[Effect, ...]:
        """Note that an event was written to `idle_reader`, whose transport holds `unsent_bytes`.

        It does what `delivered`, `take` and `written` do one after another, in less time.
        """
        self._now_s = now_s
        end = self.backlog.pass_by(n_bytes, n_tokens)
        self._readers.by_id[reader_id].wrote(end, now_s, unsent_bytes, n_bytes)
        return self._regulate() if unsent_bytes else ()

    def gathered(self, n_bytes: int, n_tokens: int) -> tuple[Effect, ...]:
        """Note that a whole answer has grown.

        The response ends if the answer is too large, or if it grows while memory is full: no reader can make room
        before its end.
        """
        if self.state is not State.OPEN:
            self._move(Input.DELIVERED)
        self.backlog.gather(n_bytes, n_tokens)
        gathered_bytes, budget = self.backlog.gathered_bytes, self._budget
        if gathered_bytes > budget.max_answer_bytes:
            return self.close(FinishReason.ERROR, answer_too_large(budget.max_answer_bytes))
        if budget.pressure is Pressure.FULL and gathered_bytes > self.terms.policy.low_mark_bytes:
            return self.close(FinishReason.ERROR, OUT_OF_MEMORY)
        return self._regulate_unless_calm()

    def set_status_line(self, line: bytes) -> None:
        """Set a comment about the progress. Readers that have every event get it; the next event removes it."""
        self.backlog.status_line = line

    def finished(self, rid: Rid, reason: FinishReason, frames: Iterable[bytes] = ()) -> tuple[Effect, ...]:
        """Note that a sequence finished well, with its last events. Raises `InvariantError` if it does not run here."""
        if rid not in self._live:
            raise InvariantError(f"sequence {rid} finished, but does not run in this response")
        del self._live[rid]
        self._move(Input.FINISHED if self._live else Input.COMPLETED)
        for frame in frames:
            self.backlog.push(frame, 0)
        if self.reason is not FinishReason.LENGTH:
            self.reason = reason
        if not self._live:
            return (EndResponse(self.reason),)
        return self._regulate_unless_calm()

    def failed(self, rid: Rid, reason: FinishReason, refusal: Refusal) -> tuple[Effect, ...]:
        """Note that a sequence finished with an error. The whole response ends with it."""
        self._remove(rid)
        self._move(Input.FAILED)
        return self._end(reason, refusal)

    def rejected(self, refusal: Refusal) -> tuple[Effect, ...]:
        """Note that the engine refused the whole request and holds nothing of it."""
        self._move(Input.REJECTED)
        self._live.clear()
        return self._end(FinishReason.ERROR, refusal)

    def conclude(self, frame: Piece, before: Iterable[Piece] = (), now_s: float | None = None) -> None:
        """Carry out `EndResponse`: add the last events. A response that was ended early drops unframed tokens.

        `now_s` None: the current time is that of the last fact.
        """
        if self.state not in ENDED:
            raise InvariantError(f"a response that is {self.state.value} cannot be concluded")
        if self.state is State.CLOSING:
            self.backlog.drop_unframed()
        self.backlog.conclude(frame, before)
        self._now_s = self._now_s if now_s is None else now_s
        self.ended_s = self._unattended_since_s = self._now_s
        if not self._readers.has_listener:  # else the last event waits for one
            self._close_if_emptied()

    # From readers.

    def attached(self, cursor: Cursor, now_s: float) -> tuple[ReaderId, tuple[Effect, ...]]:
        """Attach a reader at a cursor that `cursor_after` returned."""
        self._move(Input.ATTACHED)
        self._now_s = now_s
        reader_id = self._readers.admit(cursor, self.backlog.end, now_s)
        is_first = reader_id == 1 and cursor == self.backlog.end  # so that nothing can be held back yet
        return reader_id, () if is_first else self._regulate()

    def take(self, reader_id: ReaderId) -> PendingWrite | None:
        """The next write for this reader; None if nothing waits. Its writer calls `written` after the write."""
        reader = self._readers.by_id.get(reader_id)
        return None if reader is None else reader.take(self.backlog)

    def written(self, reader_id: ReaderId, now_s: float, unsent_bytes: int = 0) -> tuple[Effect, ...]:
        """Note that the write was handed to the transport, which holds `unsent_bytes`. Ignores a lost reader."""
        self._now_s = now_s  # the input `written` is valid in every state, and changes none
        backlog, readers = self.backlog, self._readers
        reader = readers.by_id.get(reader_id)
        if reader is None:
            return ()
        reader.wrote(backlog.end, now_s, unsent_bytes)
        if reader.is_dismissed:
            self._trim()
        else:
            backlog.advance(reader.cursor, reader.cursor if len(readers.by_id) == 1 else readers.slowest(backlog.end))
        if backlog.is_ended and self.state in ENDED:
            self._close_if_emptied()
        # A reader that got something, and whose transport holds nothing, cannot be further behind than before.
        return () if readers.is_at_ease and not unsent_bytes else self._regulate()

    def send_to(self, reader_id: ReaderId, frame: bytes) -> None:
        """Carry out `EndReader` or `KeepAlive`: write this frame to the reader alone. Ignores a lost reader."""
        reader = self._readers.by_id.get(reader_id)
        if reader is not None:
            reader.set_aside(frame, self._now_s)

    def lost(self, reader_id: ReaderId, now_s: float) -> tuple[Effect, ...]:
        """Note that a reader left, or has got everything. Idempotent, in every state."""
        self._now_s = now_s
        if self.state is State.CLOSED:  # which holds nothing, and no reader
            return ()
        was_there = self._readers.by_id.pop(reader_id, None) is not None
        stays = not was_there or self._readers.has_listener
        meaning = meaning_of_loss(self.state, stays=stays, may_return=self._may_return, is_kept=self._is_kept)
        was_open = self.state is State.OPEN
        self._move(meaning)
        if meaning is Input.DESERTED and was_open:
            self.reason, self.ended_s = FinishReason.DISCONNECTED, now_s
            return self._cancel(FinishReason.DISCONNECTED)
        if meaning is Input.LEFT:
            self._unattended_since_s = now_s
        self._trim()
        return self._regulate()

    # From the server.

    def tick(self, now_s: float, unsent_bytes: Mapping[ReaderId, int]) -> tuple[Effect, ...]:
        """Note the time, and what transports hold where that was measured. Call it several times a second."""
        self._move(Input.TICKED)
        self._now_s = now_s
        self._readers.observe(self.backlog.end, now_s, unsent_bytes)
        effects = [*self._remove_stalled_readers(), *self._expire()]
        self._trim()
        return (*effects, *self._regulate(), *self._keep_alive())

    def close(self, cause: FinishReason, refusal: Refusal | None = None) -> tuple[Effect, ...]:
        """End the response early and tell its readers why. Idempotent, in every state: the first cause wins."""
        was_live = self.state in LIVE
        self._move(Input.CLOSE)
        return self._end(cause, refusal) if was_live else ()

    def evict_if_idle(self) -> None:
        """Drop everything that is held, if the response has ended and has no reader. Else do nothing."""
        if self.state in ENDED and not self._readers.by_id:
            self._move(Input.EXPIRED)

    # Backpressure.

    def _regulate_unless_calm(self) -> tuple[Effect, ...]:
        """Judge the readers, unless another judgement would change nothing."""
        is_open = self.state is State.OPEN and not self._budget.pressure
        return () if is_open and self._readers.is_calm(self.backlog.end) else self._regulate()

    def _regulate(self) -> tuple[Effect, ...]:
        if self.state is State.OPEN:
            return self._regulate_for_readers()
        if self.state is State.DETACHED:
            return self._backpressure.detached(self._live, self._now_s)
        return ()

    def _regulate_for_readers(self) -> tuple[Effect, ...]:
        decision, effects = self._backpressure.attended(self._live, self._now_s, may_return=self._may_return)
        if decision is not Decision.DROP:
            return effects
        if not self._may_return:
            return self._end_for_slow_readers()
        self._move(Input.LEFT)
        self._unattended_since_s = self._now_s
        return (*effects, *self._regulate())

    def _end_for_slow_readers(self) -> tuple[Effect, ...]:
        """End the response, since all its readers are too slow. They get the reason instead of what waits for them."""
        self._move(Input.CLOSE)
        self.backlog.give_up()
        self._trim()
        return self._end(FinishReason.SLOW_CLIENT, None)

    # Ends.

    @property
    def _may_return(self) -> bool:
        """True when a reader may come back. Before its acceptance no client knows of the response."""
        return self.terms.may_return and not self._n_unaccepted

    @property
    def _is_kept(self) -> bool:
        """True when the response is kept after its end; never for a request that was refused."""
        return self.terms.retention is not None and not self._n_unaccepted

    @property
    def _evicted_at_s(self) -> float:
        """When a response that has ended is evicted."""
        retention = self.terms.retention
        return math.inf if retention is None else self._unattended_since_s + retention.ttl_s

    def _remove(self, rid: Rid) -> None:
        if rid not in self._live:
            raise InvariantError(f"sequence {rid} finished, but does not run in this response")
        del self._live[rid]

    def _remove_stalled_readers(self) -> list[Effect]:
        is_over = self.state in ENDED
        stalled = self._readers.stalled(self.backlog.end, self._now_s, is_over=is_over)
        if is_over and self.ended_s is not None and self._budget.pressure is Pressure.FULL:
            # Its sequences have finished, so nothing can be paused any more.
            stalled = [*{*stalled, *self._readers.hoarding(self.backlog.end, self._now_s, self.ended_s)}]
        effects = list[Effect]()
        for reader_id in stalled:
            effects += (Disconnect(reader_id), *self.lost(reader_id, self._now_s))
        return effects

    def _expire(self) -> tuple[Effect, ...]:
        retention = self.terms.retention
        if self.state is State.DETACHED and retention is not None:
            if self._now_s - self._unattended_since_s >= retention.grace_s:
                self._move(Input.EXPIRED)
                return self._end(FinishReason.GRACE_EXPIRED, None)
        elif self._now_s >= self._evicted_at_s:
            self.evict_if_idle()
        return ()

    def _keep_alive(self) -> list[Effect]:
        after_s = self.terms.keep_alive_s
        if not after_s or self.state is not State.OPEN or self._n_unaccepted:
            return []
        return [KeepAlive(one) for one in self._readers.silent(self.backlog.end, self._now_s, after_s)]

    def _end(self, reason: FinishReason, refusal: Refusal | None) -> tuple[Effect, ...]:
        self.reason = reason
        return (*self._cancel(reason), EndResponse(reason, refusal))

    def _cancel(self, reason: FinishReason) -> tuple[Effect, ...]:
        """Cancel the sequences that still run."""
        rids = tuple(self._live)
        self._live.clear()
        return (CancelSequences(rids, reason),) if rids else ()

    def _trim(self) -> None:
        self.backlog.trim(self._readers.slowest(self.backlog.end))

    def _close_if_emptied(self) -> None:
        is_kept = self.terms.retention is not None and not self._n_unaccepted
        if not is_kept and self._readers.is_done(self.backlog.end):
            self._move(Input.EMPTIED)

    def _move(self, given: Input) -> None:
        self.state = TRANSITIONS.get((self.state, given)) or next_state(self.state, given)
        if self.state is State.CLOSED:
            self._readers.by_id.clear()
            self.backlog.discard()
