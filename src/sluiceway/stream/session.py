"""One response's mind: which of its sequences live, whether it has ended and why, what its reader has yet to get.

Theory of operation
-------------------
A response has one sequence per choice. It is told facts (`accepted`, `delivered`, `finished`, ...) and wishes
(`close`), changes state by the table below, and returns effects for its shell to carry out. Nothing here waits, so
nothing here can be cancelled half way.

==========  ===========================================================================================
open        sequences live upstream; their frames go to the outbox
draining    the last sequence ended well; the reader has yet to get the rest
closing     the response was ended early; what lived upstream is cancelled; the reader has yet to get the reason
closed      nothing is held; nothing more is written
==========  ===========================================================================================

`EndResponse` is returned exactly once, unless the reader is lost before that (then nobody is there to be told): it is
the terminal of the response, as `Finished` is that of a sequence. `CancelUpstream` names only sequences whose terminal
has not come, and is returned at most once.

After an early end the shell routes no event of its sequences here any more, so an event that comes in `draining`,
`closing` or `closed` is a bug and raises. `close` and `lost` are welcome in every state: their callers are cleanup
paths, which must not have to know what has happened before.

What this file does not know: bytes on a socket, protocols, time, the processes upstream.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sluiceway.errors import InvariantError, Refusal
from sluiceway.stream.outbox import Batch, Outbox
from sluiceway.types import FinishReason, Rid


class State(enum.Enum):
    """See the module's docstring."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"

    __hash__ = object.__hash__  # that of an enum hashes a name, in Python: half of what a transition would cost


class Input(enum.Enum):
    """What can happen to a session."""

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    FINISHED = "finished"
    """A sequence ended well, and others still live."""
    COMPLETED = "completed"
    """The last sequence ended well."""
    FAILED = "failed"
    REJECTED = "rejected"
    WRITTEN = "written"
    EMPTIED = "emptied"
    """Written, and nothing is left to write."""
    LOST = "lost"
    CLOSE = "close"

    __hash__ = object.__hash__


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.ACCEPTED): State.OPEN,
    (State.OPEN, Input.DELIVERED): State.OPEN,
    (State.OPEN, Input.FINISHED): State.OPEN,
    (State.OPEN, Input.COMPLETED): State.DRAINING,
    (State.OPEN, Input.FAILED): State.CLOSING,
    (State.OPEN, Input.REJECTED): State.CLOSING,
    (State.OPEN, Input.WRITTEN): State.OPEN,
    (State.OPEN, Input.EMPTIED): State.OPEN,
    (State.OPEN, Input.LOST): State.CLOSED,
    (State.OPEN, Input.CLOSE): State.CLOSING,
    (State.DRAINING, Input.WRITTEN): State.DRAINING,
    (State.DRAINING, Input.EMPTIED): State.CLOSED,
    (State.DRAINING, Input.LOST): State.CLOSED,
    (State.DRAINING, Input.CLOSE): State.DRAINING,
    (State.CLOSING, Input.WRITTEN): State.CLOSING,
    (State.CLOSING, Input.EMPTIED): State.CLOSED,
    (State.CLOSING, Input.LOST): State.CLOSED,
    (State.CLOSING, Input.CLOSE): State.CLOSING,
    (State.CLOSED, Input.WRITTEN): State.CLOSED,
    (State.CLOSED, Input.EMPTIED): State.CLOSED,
    (State.CLOSED, Input.LOST): State.CLOSED,
    (State.CLOSED, Input.CLOSE): State.CLOSED,
}
"""Every pair that is not here is a bug and raises `InvariantError`."""


@dataclass(frozen=True, slots=True)
class CancelUpstream:
    """End these sequences, for this reason."""

    rids: tuple[Rid, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class EndResponse:
    """Tell the reader how it ended: well (no refusal) or not."""

    refusal: Refusal | None


Effect: TypeAlias = CancelUpstream | EndResponse


class Session:
    """The state of one response, and its outbox. What ends it returns the effects to carry out, in order."""

    __slots__ = ("_live", "_unaccepted", "outbox", "state")

    def __init__(self, rids: Iterable[Rid]) -> None:
        self._live = dict.fromkeys(rids)
        self._unaccepted = len(self._live)
        self.state = State.OPEN
        self.outbox = Outbox()

    @property
    def is_accepted(self) -> bool:
        """Whether every sequence was admitted: only then is the response certain to be a stream of tokens."""
        return self._unaccepted == 0

    def accepted(self) -> None:
        """One more sequence was admitted."""
        self._move(Input.ACCEPTED)
        self._unaccepted -= 1

    def delivered(self, frame: bytes, n_tokens: int) -> None:
        """Frames of one event are ready for the reader."""
        self._move(Input.DELIVERED)
        self.outbox.push(frame, n_tokens)

    def finished(self, rid: Rid) -> tuple[Effect, ...]:
        """A sequence ended well."""
        self._move(Input.COMPLETED if self._live.keys() <= {rid} else Input.FINISHED)
        self._settle(rid)
        return () if self._live else (EndResponse(None),)

    def failed(self, rid: Rid, reason: FinishReason, refusal: Refusal) -> tuple[Effect, ...]:
        """A sequence ended badly, and with it the response."""
        self._move(Input.FAILED)
        self._settle(rid)
        return (*self._cancel(reason), EndResponse(refusal))

    def rejected(self, refusal: Refusal) -> tuple[Effect, ...]:
        """The whole request was refused upstream, where nothing of it is held."""
        self._move(Input.REJECTED)
        self._live.clear()
        return (EndResponse(refusal),)

    def take(self) -> Batch:
        """What is to be written next. The caller says `written` when it was."""
        return self.outbox.take()

    def written(self) -> None:
        """What was taken has been handed to the transport."""
        self._move(Input.WRITTEN if self.outbox.n_events else Input.EMPTIED)

    def lost(self) -> tuple[Effect, ...]:
        """Nobody writes to the reader any more: it has left, or all is written. Idempotent, in every state."""
        self._move(Input.LOST)
        return self._cancel(FinishReason.CANCELLED)

    def close(self, cause: FinishReason, refusal: Refusal) -> tuple[Effect, ...]:
        """End the response early and tell the reader why. Idempotent, in every state."""
        was_open = self.state is State.OPEN
        self._move(Input.CLOSE)
        return (*self._cancel(cause), EndResponse(refusal)) if was_open else ()

    def _settle(self, rid: Rid) -> None:
        if rid not in self._live:
            raise InvariantError(f"sequence {rid} ended, but does not live in this session")
        del self._live[rid]

    def _cancel(self, reason: FinishReason) -> tuple[Effect, ...]:
        rids = tuple(self._live)
        self._live.clear()
        return (CancelUpstream(rids, reason),) if rids else ()

    def _move(self, what: Input) -> None:
        try:
            self.state = TRANSITIONS[self.state, what]
        except KeyError:
            raise InvariantError(f"a session that is {self.state.value} cannot take {what.value}") from None
