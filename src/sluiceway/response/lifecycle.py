"""The states of a response, the transitions between them, and the effects that its owner carries out.

Theory of operation
-------------------
A response generates for its readers. Usually it has one reader, the client that sent the request. A response that can
be resumed may have several readers, or none for a while.

==========  ===========================================================================================
open        sequences run in the engine, and at least one client reads
detached    sequences run in the engine, no client reads, and one may come back within the grace time
draining    the last sequence finished well; readers have yet to get the rest, or may come back for it
closing     the response was ended early; readers have yet to get the rest, which ends with the reason
closed      nothing is held, and nothing more is written
==========  ===========================================================================================

Each input of the table has one meaning. Where one event can mean different things, each meaning is an input of its
own: a reader that leaves is *lost* if that changes nothing, has *left* if it was the last one and may come back, and
has *deserted* if it was the last one and may not.

========= ======== ======== ======== ======== ========
input     open     detached draining closing  closed
========= ======== ======== ======== ======== ========
accepted  open     -        -        -        -
delivered open     detached -        -        -
finished  open     detached -        -        -
completed draining draining -        -        -
failed    closing  closing  -        -        -
rejected  closing  -        -        -        -
attached  open     open     draining closing  -
written   open     detached draining closing  closed
lost      open     detached draining closing  closed
left      detached -        -        -        -
deserted  closed   -        closed   closed   -
emptied   -        -        closed   closed   -
ticked    open     detached draining closing  closed
expired   -        closing  closed   closed   -
close     closing  closing  draining closing  closed
========= ======== ======== ======== ======== ========

Writers (written), cleanup (lost, close) and time (ticked) may come in every state, because their callers cannot know
what has happened before. An event of a sequence that comes when no sequence runs is a bug and raises; so does a reader
that attaches to a closed response.

What this file does not know: which input an event is. `response.stream` decides that.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.types import FinishReason, Rid

ReaderId: TypeAlias = int
"""Identifies a reader within its response, from 1."""


class State(enum.Enum):
    """Where a response is in its life; the docstring of this module defines each state."""

    __hash__ = object.__hash__  # it is hashed several times per event, and the hash of enums is slow

    OPEN = "open"
    DETACHED = "detached"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"


class Input(enum.Enum):
    """What happens to a response."""

    __hash__ = object.__hash__

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    FINISHED = "finished"
    """A sequence finished well, and others still run."""
    COMPLETED = "completed"
    """The last sequence finished well."""
    FAILED = "failed"
    REJECTED = "rejected"
    ATTACHED = "attached"
    WRITTEN = "written"
    LOST = "lost"
    """A reader left, and the response goes on as before."""
    LEFT = "left"
    """The last reader left, and may come back."""
    DESERTED = "deserted"
    """The last reader left, and nothing is kept for another one."""
    EMPTIED = "emptied"
    """Every reader has got everything, and nothing is kept for another one."""
    TICKED = "ticked"
    EXPIRED = "expired"
    """The grace time is over, or an ended response was kept for long enough, or its memory is needed."""
    CLOSE = "close"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.OPEN, Input.ACCEPTED): State.OPEN,
    (State.OPEN, Input.DELIVERED): State.OPEN,
    (State.OPEN, Input.FINISHED): State.OPEN,
    (State.OPEN, Input.COMPLETED): State.DRAINING,
    (State.OPEN, Input.FAILED): State.CLOSING,
    (State.OPEN, Input.REJECTED): State.CLOSING,
    (State.OPEN, Input.ATTACHED): State.OPEN,
    (State.OPEN, Input.WRITTEN): State.OPEN,
    (State.OPEN, Input.LOST): State.OPEN,
    (State.OPEN, Input.LEFT): State.DETACHED,
    (State.OPEN, Input.DESERTED): State.CLOSED,
    (State.OPEN, Input.TICKED): State.OPEN,
    (State.OPEN, Input.CLOSE): State.CLOSING,
    (State.DETACHED, Input.DELIVERED): State.DETACHED,
    (State.DETACHED, Input.FINISHED): State.DETACHED,
    (State.DETACHED, Input.COMPLETED): State.DRAINING,
    (State.DETACHED, Input.FAILED): State.CLOSING,
    (State.DETACHED, Input.ATTACHED): State.OPEN,
    (State.DETACHED, Input.WRITTEN): State.DETACHED,
    (State.DETACHED, Input.LOST): State.DETACHED,
    (State.DETACHED, Input.TICKED): State.DETACHED,
    (State.DETACHED, Input.EXPIRED): State.CLOSING,
    (State.DETACHED, Input.CLOSE): State.CLOSING,
    (State.DRAINING, Input.ATTACHED): State.DRAINING,
    (State.DRAINING, Input.WRITTEN): State.DRAINING,
    (State.DRAINING, Input.LOST): State.DRAINING,
    (State.DRAINING, Input.DESERTED): State.CLOSED,
    (State.DRAINING, Input.EMPTIED): State.CLOSED,
    (State.DRAINING, Input.TICKED): State.DRAINING,
    (State.DRAINING, Input.EXPIRED): State.CLOSED,
    (State.DRAINING, Input.CLOSE): State.DRAINING,
    (State.CLOSING, Input.ATTACHED): State.CLOSING,
    (State.CLOSING, Input.WRITTEN): State.CLOSING,
    (State.CLOSING, Input.LOST): State.CLOSING,
    (State.CLOSING, Input.DESERTED): State.CLOSED,
    (State.CLOSING, Input.EMPTIED): State.CLOSED,
    (State.CLOSING, Input.TICKED): State.CLOSING,
    (State.CLOSING, Input.EXPIRED): State.CLOSED,
    (State.CLOSING, Input.CLOSE): State.CLOSING,
    (State.CLOSED, Input.WRITTEN): State.CLOSED,
    (State.CLOSED, Input.LOST): State.CLOSED,
    (State.CLOSED, Input.TICKED): State.CLOSED,
    (State.CLOSED, Input.CLOSE): State.CLOSED,
}
"""A pair that is not in this table is a bug: `next_state` raises `InvariantError`."""

LIVE = frozenset({State.OPEN, State.DETACHED})
"""States in which sequences run in the engine."""
ENDED = frozenset({State.DRAINING, State.CLOSING})
"""States in which only readers have something left to do."""


def next_state(state: State, given: Input) -> State:
    """Look the transition up. Raises `InvariantError` for a pair that is not in the table."""
    following = TRANSITIONS.get((state, given))
    if following is None:
        raise InvariantError(f"a response that is {state.value} cannot take {given.value}")
    return following


def meaning_of_loss(state: State, *, stays: bool, may_return: bool, is_kept: bool) -> Input:
    """Which input it is that a reader left.

    `stays`: the reader was not there, or another one still listens. `may_return`: the response goes on without a
    reader. `is_kept`: the response is kept after its end.
    """
    if stays or state is State.DETACHED:
        return Input.LOST
    if state is State.OPEN:
        return Input.LEFT if may_return else Input.DESERTED
    return Input.LOST if is_kept else Input.DESERTED


@dataclass(frozen=True, slots=True)
class CancelSequences:
    """Cancel these sequences in the engine, for this reason. A stream asks this at most once per sequence."""

    rids: tuple[Rid, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class EndResponse:
    """Frame the last event and call `conclude` with it. A stream asks this once, unless its last reader deserted.

    `refusal` None: the usual text for the reason.
    """

    reason: FinishReason
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class EndReader:
    """Frame a last event for this reader alone, and call `send_to` with it. The response goes on without the reader."""

    reader_id: ReaderId
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Abort the connection of this reader, which does not even take its last event. The reader is already removed."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Call `send_to` for this reader with bytes that its protocol ignores: it was written nothing for long."""

    reader_id: ReaderId


Effect: TypeAlias = CancelSequences | SetFlow | EndResponse | EndReader | Disconnect | KeepAlive
