"""The events of one response in order: those that a reader has yet to get, and those that it may ask for again.

Events have ids from 1, without gaps, whether or not they are told to anybody. A *place* is between two events, and a
reader is a place that moves. Whole events are let go from the front: a reader whose place lies before what is held is
told so. A plain response keeps nothing that its reader has got; one that can be resumed keeps a bounded window.

Beside the events there may be a *notice*: how things stand, for readers that have everything. A later one takes its
place, and with the next event it is past. It is no event: it has no id, and nobody gets it again.

Each token counts once: as *delivered* when the first reader gets the event that carries it, or as *undelivered* when
that event is let go before. A token whose event is still here, or to come, is *waiting*.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from sluiceway.errors import InvariantError
from sluiceway.response.budget import MUCH_BYTES, Budget
from sluiceway.response.policy import Pressure
from sluiceway.types import Piece


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """What lies before it, since the beginning of the response. `event_id` is that of the last event before it."""

    event_id: int
    n_bytes: int
    n_tokens: int


START = Place(0, 0, 0)


class Missed(enum.Enum):
    """Why there is no place after an event id."""

    GONE = "gone"
    """What follows it is not held any more."""
    AT_END = "at_end"
    """Nothing follows it: it was the last."""
    NEVER_SENT = "never_sent"


class Window(NamedTuple):
    """How much is kept, at most, of what every reader has got."""

    max_bytes: int
    max_events: int


NOTHING = Window(0, 0)

_SPARE = 8
"""The part of a full window that is let go at once: to do it event by event would be paid for with every token."""


class Replay:
    """See the module's docstring. What it holds, it holds in the budget."""

    __slots__ = (
        "_budget",
        "_counted",
        "_frames",
        "gathered_bytes",
        "_keep",
        "_start",
        "_tokens",
        "_unframed",
        "end",
        "is_ended",
        "n_delivered",
        "n_undelivered",
        "notice",
    )

    def __init__(self, budget: Budget, keep: Window = NOTHING) -> None:
        self._budget = budget
        self._keep = keep
        self._frames: list[Piece] = []
        self._tokens: list[int] = []
        self._start = START
        self.end = START
        """The place after the last event."""
        self._unframed = 0
        """Tokens without text yet: they go with the next event."""
        self.gathered_bytes = 0
        """What an answer that is written at its end has so far: no event yet, but in the budget."""
        self._counted = START
        self.n_delivered = 0
        self.n_undelivered = 0
        self.is_ended = False
        self.notice = b""
        """One or a few lines: not counted in the budget."""

    @property
    def n_waiting(self) -> int:
        """Tokens that are not counted yet."""
        return self.end.n_tokens - self._counted.n_tokens + self._unframed

    @property
    def held_bytes(self) -> int:
        """Bytes of the events that are held."""
        return self.end.n_bytes - self._start.n_bytes

    @property
    def is_full(self) -> bool:
        """So much waits for a first reader that the window may have no room for more."""
        end, counted = self.end, self._counted
        return (
            end.n_bytes - counted.n_bytes >= self._keep.max_bytes
            or end.event_id - counted.event_id >= self._keep.max_events
        )

    def push(self, frame: Piece, n_tokens: int) -> None:
        """Add an event; an empty one (text is held back) adds its tokens only. Raises `InvariantError` at the end."""
        if self.is_ended:
            raise InvariantError("an event came after the last one of its response")
        self._unframed += n_tokens
        if frame:
            size, end = len(frame), self.end
            self._frames.append(frame)
            self._tokens.append(self._unframed)
            self.end = Place(end.event_id + 1, end.n_bytes + size, end.n_tokens + self._unframed)
            self._unframed = 0
            self._budget.hold(size)

    def gather(self, n_bytes: int, n_tokens: int) -> None:
        """Count what will be in the last events."""
        self._unframed += n_tokens
        self.gathered_bytes += n_bytes
        self._budget.hold(n_bytes, 0)

    def conclude(self, frame: Piece, before: Iterable[Piece] = ()) -> None:
        """Add the last event, and those before it; after it nothing comes. It carries all tokens that are in none.

        It is not empty: readers know by it that they have everything.
        """
        if not frame:
            raise InvariantError("the last event of a response is empty")
        self._drop_gathered()
        n_tokens, self._unframed = self._unframed, 0
        for earlier in before:
            self.push(earlier, 0)
        self.push(frame, n_tokens)
        self.is_ended = True
        self.notice = b""

    def forfeit(self) -> None:
        """No event will carry the tokens that are in none so far."""
        self.n_undelivered += self._unframed
        self._unframed = 0

    def place_after(self, event_id: int) -> Place | Missed:
        """Where a reader goes on that has got this event; 0 is the beginning."""
        index = event_id - self._start.event_id
        if event_id < 0 or index > len(self._frames):
            return Missed.NEVER_SENT
        if index < 0:
            return Missed.GONE
        if index == len(self._frames) and self.is_ended:
            return Missed.AT_END
        return self._place_at(index)

    def read(self, place: Place, max_bytes: int) -> tuple[Piece, Place]:
        """Whole events after a place that is held, at least one, joined; and the place after them."""
        index, end = place.event_id - self._start.event_id, self.end
        if end.event_id == place.event_id + 1:
            return self._frames[index], end
        if end.n_bytes - place.n_bytes > max_bytes:
            # Not by `_place_at`, whose time grows with what lies before: a long window is read in many parts.
            end_index, n_bytes = index + 1, len(self._frames[index])
            while n_bytes + len(self._frames[end_index]) <= max_bytes:
                n_bytes += len(self._frames[end_index])
                end_index += 1
            n_tokens = sum(self._tokens[index:end_index])
            end = Place(place.event_id + end_index - index, place.n_bytes + n_bytes, place.n_tokens + n_tokens)
        frames = self._frames[index : end.event_id - self._start.event_id]
        return frames[0] if len(frames) == 1 else b"".join(frames), end

    def delivered(self, place: Place) -> None:
        """A reader has got everything before this place."""
        if place.event_id > self._counted.event_id:
            self.n_delivered += place.n_tokens - self._counted.n_tokens
            self._counted = place

    def give_up(self) -> None:
        """Count what waits as undelivered, though it may be here for a while."""
        self.forfeit()
        end = self.end
        self.n_undelivered += end.n_tokens - self._counted.n_tokens
        self._counted = end

    def trim(self, passed: Place) -> None:
        """Let go what is before this place and beyond the window; with memory short, all of it."""
        n_passed = passed.event_id - self._start.event_id
        if n_passed and self._keep is not NOTHING and self._budget.pressure is Pressure.NONE:
            n_passed = min(n_passed, self._n_beyond(self._keep))
        if n_passed:
            self._let_go(n_passed)

    def discard(self) -> None:
        """Let go everything. Idempotent."""
        self._drop_gathered()
        self._let_go(len(self._frames))
        self.forfeit()

    def _drop_gathered(self) -> None:
        self._budget.release(self.gathered_bytes, 0)
        self.gathered_bytes = 0

    def _n_beyond(self, keep: Window) -> int:
        """How many events must go: none while all fit, else so many that there is room for a while."""
        n_events, n_bytes = len(self._frames), self.end.n_bytes - self._start.n_bytes
        if n_events <= keep.max_events and n_bytes <= keep.max_bytes:
            return 0
        n_beyond = max(0, n_events - keep.max_events + keep.max_events // _SPARE)
        n_bytes -= sum(map(len, self._frames[:n_beyond]))
        while n_bytes > keep.max_bytes - keep.max_bytes // _SPARE:
            n_bytes -= len(self._frames[n_beyond])
            n_beyond += 1
        return n_beyond

    def _place_at(self, index: int) -> Place:
        if index == len(self._frames):
            return self.end
        n_bytes = self._start.n_bytes + sum(map(len, self._frames[:index]))
        return Place(self._start.event_id + index, n_bytes, self._start.n_tokens + sum(self._tokens[:index]))

    def _let_go(self, n_events: int) -> None:
        if n_events == len(self._frames):
            start, gone = self.end, self._frames
            self._frames, self._tokens = [], []
        else:
            start, gone = self._place_at(n_events), self._frames[:n_events]
            del self._frames[:n_events], self._tokens[:n_events]
        n_bytes = start.n_bytes - self._start.n_bytes
        self._budget.release(n_bytes, n_events)
        if n_bytes > MUCH_BYTES:
            self._budget.free_later(gone)
        self._start = start
        if start.event_id > self._counted.event_id:
            self.n_undelivered += start.n_tokens - self._counted.n_tokens
            self._counted = start
