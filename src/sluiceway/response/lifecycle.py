"""The states of a response, what moves it from one to the next, and what it asks of those around it.

Theory of operation
-------------------
A response generates for its readers. Usually it has one, which came with the request; a response that can be resumed
may have several, or none for a while.

==========  ===========================================================================================
open        sequences live upstream, and somebody reads
detached    sequences live upstream, nobody reads, and a reader may come back before the grace time is over
draining    the last sequence ended well; readers have yet to get the rest, or may come back for it
closing     the response was ended early; likewise, and the rest ends with the reason
closed      nothing is held; nothing more is written
==========  ===========================================================================================

What happens is told by the words of this table. Where one event can mean different things, each meaning is a word: a
reader that leaves is *lost* if that changes nothing, has *left* if it was the last and may come back, and has
*deserted* if it was the last and may not.

========= ======== ======== ======== ======== ========
word      open     detached draining closing  closed
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

The words of writers (written), of cleanup (lost, close) and of time (ticked) are welcome in every state, since those
who say them cannot know what has happened before. An event of a sequence that comes when none lives is a bug and
raises, as does a reader that comes to a response that is closed.

What this file does not know: which word any other event is. That is decided where it is told (`response.stream`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from sluiceway.errors import InvariantError, Refusal
from sluiceway.types import FinishReason, Rid

ReaderId: TypeAlias = int
"""Identifies a reader within its response, from 1."""


class State(enum.Enum):
    """See the module's docstring."""

    __hash__ = object.__hash__  # several times an event; the one of enums is slow

    OPEN = "open"
    DETACHED = "detached"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"


class Input(enum.Enum):
    """What can happen to a response."""

    __hash__ = object.__hash__

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    FINISHED = "finished"
    """A sequence ended well, and others still live."""
    COMPLETED = "completed"
    """The last sequence ended well."""
    FAILED = "failed"
    REJECTED = "rejected"
    ATTACHED = "attached"
    WRITTEN = "written"
    LOST = "lost"
    """A reader is not there any more, and the response goes on as before."""
    LEFT = "left"
    """The last reader is gone, and may come back."""
    DESERTED = "deserted"
    """The last reader is gone, and nothing is kept for another one."""
    EMPTIED = "emptied"
    """Every reader has everything, and nothing is kept for another one."""
    TICKED = "ticked"
    EXPIRED = "expired"
    """The grace time, or the time for which an ended response is kept, is over; or its room is needed."""
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
"""Every pair that is not here is a bug and raises `InvariantError`."""

LIVE = frozenset({State.OPEN, State.DETACHED})
"""States in which sequences live upstream."""
ENDED = frozenset({State.DRAINING, State.CLOSING})
"""States in which only readers are waited for."""


def next_state(state: State, given: Input) -> State:
    """The table, and `InvariantError` for what is not in it."""
    following = TRANSITIONS.get((state, given))
    if following is None:
        raise InvariantError(f"a response that is {state.value} cannot take {given.value}")
    return following


def meaning_of_loss(state: State, *, stays: bool, may_return: bool, is_kept: bool) -> Input:
    """What it means that a reader is gone. `stays`: it was not there, or another one listens.

    `may_return`: the response goes on without a reader; `is_kept`: it is kept when it has ended.
    """
    if stays or state is State.DETACHED:
        return Input.LOST
    if state is State.OPEN:
        return Input.LEFT if may_return else Input.DESERTED
    return Input.LOST if is_kept else Input.DESERTED


@dataclass(frozen=True, slots=True)
class CancelUpstream:
    """End these sequences, for this reason. Asked at most once."""

    rids: tuple[Rid, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class PauseUpstream:
    """Leave these sequences out of the engine's plans; they keep their blocks."""

    rids: tuple[Rid, ...]


@dataclass(frozen=True, slots=True)
class ParkUpstream:
    """Leave them out, and take their blocks and slots."""

    rids: tuple[Rid, ...]


@dataclass(frozen=True, slots=True)
class ResumeUpstream:
    """Take them in again, after a pause or a parking."""

    rids: tuple[Rid, ...]


@dataclass(frozen=True, slots=True)
class EndResponse:
    """Frame the last event, and `conclude` with it. Asked exactly once, unless the last reader deserted before.

    `refusal` None: in the usual words for the reason.
    """

    reason: FinishReason
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class EndReader:
    """The response goes on without this reader: frame its last word, and `interject` it. Once a reader at most."""

    reader_id: ReaderId
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Break this reader's connection off: it does not even take its last word. It is lost already."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """This reader was written nothing for long: `interject` something that its protocol ignores."""

    reader_id: ReaderId


Effect: TypeAlias = (
    CancelUpstream | PauseUpstream | ParkUpstream | ResumeUpstream | EndResponse | EndReader | Disconnect | KeepAlive
)
