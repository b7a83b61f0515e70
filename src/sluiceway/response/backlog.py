"""The events of one response, in order: those that a reader has yet to get, and those kept for a replay.

Events have ids from 1, without gaps, whether or not the client sees the ids. A *cursor* lies between two events; each
reader has one, and it moves forward. Whole events are evicted from the front. A reader whose cursor lies before the
first event that is held cannot go on. A plain response keeps no event that its reader has got; a response that can be
resumed keeps a bounded window of them.

There may also be a *status line*: a comment about the progress, for readers that have got every event. A
new status line replaces the one before, and the next event removes it. It has no id and is never replayed.

Each token counts exactly once: as *delivered* when the first reader gets the event that carries it, or as
*undelivered* when that event is evicted first. A token whose event is held, or still to come, is *waiting*.
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


class Cursor(msgspec.Struct, frozen=True, order=True, gc=False):
    """A position between two events: how much lies before it, and the id of the last event before it."""

    event_id: int
    n_bytes: int
    n_tokens: int


START = Cursor(0, 0, 0)


class Missed(enum.Enum):
    """Why no cursor lies after an event id."""

    GONE = "gone"
    """The events after it are not held any more."""
    AT_END = "at_end"
    """It is the id of the last event."""
    NEVER_SENT = "never_sent"


class Window(NamedTuple):
    """How many bytes and events are kept, at most, after every reader has got them."""

    max_bytes: int
    max_events: int


NOTHING = Window(0, 0)

_SPARE = 8
"""A full window is cut by this part. Cutting it event by event would cost time with every token."""


class Backlog:
    """Holds the events of one response and counts their tokens. Its memory counts in the budget."""

    __slots__ = (
        "_budget",
        "_counted",
        "_frames",
        "_keep",
        "_start",
        "_tokens",
        "_unframed",
        "end",
        "gathered_bytes",
        "is_ended",
        "n_delivered",
        "n_undelivered",
        "status_line",
    )

    def __init__(self, budget: Budget, keep: Window = NOTHING) -> None:
        self._budget = budget
        self._keep = keep
        self._frames: list[Piece] = []
        self._tokens: list[int] = []
        self._start = START
        self.end = START
        """The cursor after the last event."""
        self._unframed = 0
        """Tokens without text yet: the next event carries them."""
        self.gathered_bytes = 0
        """Size so far of a whole answer, which is written at its end. It is no event yet, but counts in the budget."""
        self._counted = START
        self.n_delivered = 0
        self.n_undelivered = 0
        self.is_ended = False
        self.status_line = b""
        """A short comment: it does not count in the budget."""

    @property
    def n_waiting(self) -> int:
        """Tokens that are neither delivered nor undelivered yet."""
        return self.end.n_tokens - self._counted.n_tokens + self._unframed

    @property
    def held_bytes(self) -> int:
        """Bytes of the events that are held."""
        return self.end.n_bytes - self._start.n_bytes

    @property
    def is_full(self) -> bool:
        """True when the events that wait for a first reader fill the window."""
        end, counted = self.end, self._counted
        return (
            end.n_bytes - counted.n_bytes >= self._keep.max_bytes
            or end.event_id - counted.event_id >= self._keep.max_events
        )

    def push(self, frame: Piece, n_tokens: int) -> None:
        """Add an event. An empty frame (text is held back) adds its tokens only.

        Raises `InvariantError` after the last event.
        """
        if self.is_ended:
            raise InvariantError("an event came after the last one of its response")
        if not frame:
            self._unframed += n_tokens
            return
        size, end = len(frame), self.end
        n_tokens += self._unframed
        self._unframed = 0
        self._frames.append(frame)
        self._tokens.append(n_tokens)
        self.end = Cursor(end.event_id + 1, end.n_bytes + size, end.n_tokens + n_tokens)
        self._budget.hold(size)

    def pass_by(self, n_bytes: int, n_tokens: int) -> Cursor:
        """Count an event that the only reader got without a wait here. Returns the cursor after it.

        Raises `InvariantError` if an event waits, or after the last event.
        """
        if self._frames or self.is_ended:
            raise InvariantError("an event passes others that wait, or comes after the last one of its response")
        n_tokens += self._unframed
        self._unframed = 0
        self.n_delivered += n_tokens
        end = Cursor(self.end.event_id + 1, self.end.n_bytes + n_bytes, self.end.n_tokens + n_tokens)
        self.end = self._start = self._counted = end
        return end

    def gather(self, n_bytes: int, n_tokens: int) -> None:
        """Count a part of a whole answer, which the last events will hold."""
        self._unframed += n_tokens
        self.gathered_bytes += n_bytes
        self._budget.hold(n_bytes, 0)

    def conclude(self, frame: Piece, before: Iterable[Piece] = ()) -> None:
        """Add the last event, after the events `before`. The last event carries all tokens that are in no event yet.

        Raises `InvariantError` for an empty frame: by the last event readers know that they have everything.
        """
        if not frame:
            raise InvariantError("the last event of a response is empty")
        if self.gathered_bytes:
            self._drop_gathered()
        n_tokens, self._unframed = self._unframed, 0
        for earlier in before:
            self.push(earlier, 0)
        self.push(frame, n_tokens)
        self.is_ended = True
        self.status_line = b""

    def drop_unframed(self) -> None:
        """Count the tokens that are in no event yet as undelivered: no event will carry them."""
        self.n_undelivered += self._unframed
        self._unframed = 0

    def cursor_after(self, event_id: int) -> Cursor | Missed:
        """The cursor for a reader that has got this event; 0 is the beginning."""
        index = event_id - self._start.event_id
        if event_id < 0 or index > len(self._frames):
            return Missed.NEVER_SENT
        if index < 0:
            return Missed.GONE
        if index == len(self._frames) and self.is_ended:
            return Missed.AT_END
        return self._cursor_at(index)

    def read(self, cursor: Cursor, max_bytes: int) -> tuple[Piece, Cursor]:
        """Join whole events after this cursor, at least one. Returns them and the cursor after them."""
        index, end = cursor.event_id - self._start.event_id, self.end
        if end.event_id == cursor.event_id + 1:
            return self._frames[index], end
        if end.n_bytes - cursor.n_bytes > max_bytes:
            # `_cursor_at` would take a time that grows with all events before: a long window is read in many parts.
            end_index, n_bytes = index + 1, len(self._frames[index])
            while n_bytes + len(self._frames[end_index]) <= max_bytes:
                n_bytes += len(self._frames[end_index])
                end_index += 1
            n_tokens = sum(self._tokens[index:end_index])
            end = Cursor(cursor.event_id + end_index - index, cursor.n_bytes + n_bytes, cursor.n_tokens + n_tokens)
        frames = self._frames[index : end.event_id - self._start.event_id]
        return frames[0] if len(frames) == 1 else b"".join(frames), end

    def advance(self, delivered: Cursor, passed: Cursor) -> None:
        """Count the tokens before `delivered`, which a reader has reached, and trim before `passed`.

        Every write to every reader comes here, so the usual case (a plain response whose reader has everything) takes
        no further calls.
        """
        if delivered.event_id > self._counted.event_id:
            self.n_delivered += delivered.n_tokens - self._counted.n_tokens
            self._counted = delivered
        n_bytes, n_events = passed.n_bytes - self._start.n_bytes, passed.event_id - self._start.event_id
        if self._keep is not NOTHING or n_events != len(self._frames) or n_bytes > MUCH_BYTES:
            self.trim(passed)
        elif n_events:
            self._frames.clear()
            self._tokens.clear()
            self._start = passed
            self._budget.release(n_bytes, n_events)

    def give_up(self) -> None:
        """Count everything that waits as undelivered. The events may be held for a while longer."""
        self.drop_unframed()
        end = self.end
        self.n_undelivered += end.n_tokens - self._counted.n_tokens
        self._counted = end

    def trim(self, passed: Cursor) -> None:
        """Evict events before this cursor that the window does not keep; under memory pressure, all before it."""
        n_passed = passed.event_id - self._start.event_id
        if n_passed and self._keep is not NOTHING and self._budget.pressure is Pressure.NONE:
            n_passed = min(n_passed, self._n_beyond(self._keep))
        if n_passed:
            self._evict(n_passed)

    def discard(self) -> None:
        """Evict every event. Idempotent."""
        if self.gathered_bytes:
            self._drop_gathered()
        if self._frames:
            self._evict(len(self._frames))
        self.n_undelivered += self._unframed
        self._unframed = 0

    def _drop_gathered(self) -> None:
        self._budget.release(self.gathered_bytes, 0)
        self.gathered_bytes = 0

    def _n_beyond(self, keep: Window) -> int:
        """How many events to evict: none while all fit, else enough to have room for a while."""
        n_events, n_bytes = len(self._frames), self.end.n_bytes - self._start.n_bytes
        if n_events <= keep.max_events and n_bytes <= keep.max_bytes:
            return 0
        n_beyond = max(0, n_events - keep.max_events + keep.max_events // _SPARE)
        n_bytes -= sum(map(len, self._frames[:n_beyond]))
        while n_bytes > keep.max_bytes - keep.max_bytes // _SPARE:
            n_bytes -= len(self._frames[n_beyond])
            n_beyond += 1
        return n_beyond

    def _cursor_at(self, index: int) -> Cursor:
        if index == len(self._frames):
            return self.end
        n_bytes = self._start.n_bytes + sum(map(len, self._frames[:index]))
        return Cursor(self._start.event_id + index, n_bytes, self._start.n_tokens + sum(self._tokens[:index]))

    def _evict(self, n_events: int) -> None:
        if n_events == len(self._frames):
            start, gone = self.end, self._frames
            self._frames, self._tokens = [], []
        else:
            start, gone = self._cursor_at(n_events), self._frames[:n_events]
            del self._frames[:n_events], self._tokens[:n_events]
        n_bytes = start.n_bytes - self._start.n_bytes
        self._budget.release(n_bytes, n_events)
        if n_bytes > MUCH_BYTES:
            self._budget.free_later(gone)
        self._start = start
        if start.event_id > self._counted.event_id:
            self.n_undelivered += start.n_tokens - self._counted.n_tokens
            self._counted = start
