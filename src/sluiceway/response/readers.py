"""The readers of one response: what each has got, which are slow, and whether the sequences run, pause or park.

Of several readers, the mildest decision counts for the engine: a slow reader does not hold up the others. Readers
whose own decision is to drop are named one by one. While no reader is behind, the readers need not be judged again
before the response has grown by what the first of them may still be sent: so judging costs nothing per event.

The engine gets changes only. Parked sequences stay parked until they run again: pausing them would change nothing.

What this file does not know: sockets, clocks, and what follows from a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from sluiceway.errors import InvariantError
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.response.backlog import Backlog, Cursor
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import Effect, EndReader, ReaderId
from sluiceway.response.policy import MAX_AMOUNT, Decision, Measure, Policy, Pressure, decide, is_behind, spare
from sluiceway.response.terms import StreamTerms
from sluiceway.types import FinishReason, Flow, Piece, Rid

WRITE_BYTES = 8 * 1024
"""How much is joined for one write. A transport holds a write until all of it is taken. A larger write would fill it
beyond the marks of a reader that has stopped."""

_FLOW: Mapping[Decision, Flow] = MappingProxyType(
    {Decision.RUN: Flow.RUN, Decision.PAUSE: Flow.PAUSE, Decision.PARK: Flow.PARK}
)

_MOMENT_S = 2.0
_USUAL_DROP_AFTER_S = 30.0
"""When a reader that is behind is dropped, for policies without such a time."""


class PendingWrite(msgspec.Struct, frozen=True, gc=False):
    """Whole events for one write to one reader."""

    data: Piece
    is_last: bool
    """True when the reader gets nothing after this write."""
    has_more: bool = False
    """True when more waits than one write may have."""


class Reader:
    """One reader: its cursor, what its transport still holds, and since when it takes nothing.

    A reader may be *dismissed*: it gets a last event of its own instead of what waits for it, and the response goes on
    without it. Bytes that are set *aside* (that last event, or a comment that keeps the connection alive) are no event
    of the response. Times are seconds of one monotonic clock.
    """

    __slots__ = (
        "_aside",
        "_behind_since_s",
        "_handed_bytes",
        "_joined",
        "_pending",
        "_seen_status_line",
        "_taken_bytes",
        "_took_s",
        "_unsent_bytes",
        "_write_bytes",
        "came_s",
        "cursor",
        "is_dismissed",
        "wrote_s",
    )

    def __init__(self, cursor: Cursor, joined: Cursor, now_s: float) -> None:
        self.cursor = cursor
        """Every event before it was written to this reader."""
        self._joined = joined
        """What was there before the reader came is replayed to it, and does not make it slow."""
        self.is_dismissed = False
        self._pending: Cursor | None = None
        self._write_bytes = 0
        self._aside = self._seen_status_line = b""
        self._handed_bytes = self._taken_bytes = self._unsent_bytes = 0
        self._took_s = self.wrote_s = self.came_s = now_s
        self._behind_since_s: float | None = None

    def take(self, backlog: Backlog) -> PendingWrite | None:
        """The next write for this reader; None if nothing waits, or while an earlier write is under way."""
        cursor, end = self.cursor, backlog.end
        if self._pending is not None:
            return None
        if cursor.event_id < end.event_id and not (self.is_dismissed or self._aside):
            data, self._pending = backlog.read(cursor, WRITE_BYTES)
        else:
            if not (self._aside or (backlog.status_line and self._lacks_status_line(backlog))):
                return None
            data, self._pending = self._aside, cursor
            if not self.is_dismissed and cursor.event_id < end.event_id:
                events, self._pending = backlog.read(cursor, WRITE_BYTES)
                data = b"".join((data, events))
            self._aside = b""
        if backlog.status_line and self._pending.event_id == end.event_id and self._lacks_status_line(backlog):
            data = b"".join((data, backlog.status_line))
            self._seen_status_line = backlog.status_line
        self._write_bytes = len(data)
        if self.is_dismissed or self._pending.event_id == end.event_id:
            return PendingWrite(data, self.is_dismissed or backlog.is_ended)
        return PendingWrite(data, False, True)

    def wrote(self, end: Cursor, now_s: float, unsent_bytes: int, n_passed_bytes: int = 0) -> None:
        """Note that the write was handed to the transport, which now holds `unsent_bytes`.

        With `n_passed_bytes`, an event of that size was written before it could be taken: the reader has everything.
        """
        if n_passed_bytes:
            self.cursor = end
            self._handed_bytes += n_passed_bytes
        elif self._pending is not None:
            self.cursor, self._pending = self._pending, None
            self._handed_bytes += self._write_bytes
        else:
            raise InvariantError("a write ended that was never taken")
        self._unsent_bytes = unsent_bytes
        self.wrote_s = now_s
        taken_bytes = self._handed_bytes - unsent_bytes
        if taken_bytes > self._taken_bytes or self.has_all(end):
            self._took_s = now_s
        self._taken_bytes = taken_bytes

    def observe(self, end: Cursor, now_s: float, unsent_bytes: int | None = None) -> None:
        """Note whether the reader took something; None: the transport holds as much as before."""
        if unsent_bytes is not None:
            self._unsent_bytes = unsent_bytes
        taken_bytes = self._handed_bytes - self._unsent_bytes
        if taken_bytes > self._taken_bytes or self.has_all(end):
            self._took_s = now_s
        self._taken_bytes = taken_bytes

    def note_behind(self, is_behind: bool, now_s: float) -> None:
        """Note since when the reader is behind, or that it is not."""
        if not is_behind:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now_s

    def measure(self, end: Cursor, now_s: float, pressure: Pressure) -> Measure:
        """What a policy decides on."""
        since_s, cursor = self._behind_since_s, max(self.cursor, self._joined)
        return Measure(
            end.n_bytes - cursor.n_bytes,
            end.event_id - cursor.event_id,
            self._unsent_bytes,
            self.stalled_s(end, now_s),
            None if since_s is None else now_s - since_s,
            pressure,
        )

    def stalled_s(self, end: Cursor, now_s: float) -> float:
        """Seconds since the reader took something; 0 if nothing waits for it."""
        return 0.0 if self.has_all(end) else now_s - self._took_s

    def waiting_bytes(self, end: Cursor) -> int:
        """Bytes that the reader has yet to take, in the backlog and in its transport."""
        return end.n_bytes - self.cursor.n_bytes + self._unsent_bytes

    def has_all(self, end: Cursor) -> bool:
        """True when nothing waits for the reader anywhere."""
        return not self._unsent_bytes and self.is_done(end)

    def is_done(self, end: Cursor) -> bool:
        """True when everything was written to the reader."""
        has_work = self._aside or (not self.is_dismissed and self.cursor.event_id < end.event_id)
        return self._pending is None and not has_work

    def is_silent(self, end: Cursor, now_s: float, after_s: float) -> bool:
        """True when the reader has everything and was written nothing for `after_s`."""
        return self.has_all(end) and not self.is_dismissed and now_s - self.wrote_s >= after_s

    def set_aside(self, frame: bytes, now_s: float) -> None:
        """Write this next. It is no event of the response."""
        self._aside += frame
        self.wrote_s = now_s

    def keep_status_line(self, backlog: Backlog, now_s: float) -> None:
        """Set the status line aside before an event removes it, if this reader has every event and lacks the line."""
        if self._lacks_status_line(backlog) and (self._pending or self.cursor) == backlog.end:
            self.set_aside(backlog.status_line, now_s)

    def skip_to(self, end: Cursor, now_s: float) -> None:
        """Skip what waits for the reader. Its time to take something begins again."""
        self.cursor = end
        if self._pending is not None:
            self._pending = end
        self._aside = b""
        self._took_s = now_s
        self._behind_since_s = None

    def _lacks_status_line(self, backlog: Backlog) -> bool:
        line = backlog.status_line
        return bool(line) and line is not self._seen_status_line and not self.is_dismissed


class Readers:
    """All readers of one response, by id, and the decision that follows from how slow they are."""

    __slots__ = ("_calm_bytes", "_calm_events", "_last_id", "_policy", "by_id", "is_at_ease")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._last_id = 0
        self._calm_bytes = self._calm_events = -1
        self.is_at_ease = False
        """True when no reader was behind at the last judgement, and no reader has come since."""
        self.by_id: dict[ReaderId, Reader] = {}

    def admit(self, cursor: Cursor, end: Cursor, now_s: float) -> ReaderId:
        """Add a reader that goes on from this cursor."""
        self._last_id += 1
        self.by_id[self._last_id] = Reader(cursor, end, now_s)
        self._calm_bytes = self._calm_events = -1
        self.is_at_ease = False
        return self._last_id

    @property
    def has_listener(self) -> bool:
        """True when a reader is there that was not dismissed."""
        for reader in self.by_id.values():
            if not reader.is_dismissed:
                return True
        return False

    def is_calm(self, end: Cursor) -> bool:
        """True when the backlog is too small for another judgement to change anything."""
        return end.n_bytes <= self._calm_bytes and end.event_id <= self._calm_events

    def judge(self, end: Cursor, now_s: float, pressure: Pressure) -> tuple[Decision, list[ReaderId]]:
        """Decide by the policy. Returns the mildest decision, and the readers to drop. No reader: run."""
        policy, decisions = self._policy, dict[ReaderId, Decision]()
        self._calm_bytes = self._calm_events = MAX_AMOUNT
        self.is_at_ease = True
        for reader_id, reader in self._listeners():
            measure = reader.measure(end, now_s, pressure)
            reader.note_behind(is_behind(policy, measure), now_s)
            decisions[reader_id] = decide(policy, measure)
            spare_bytes, spare_events = spare(policy, measure)
            self.is_at_ease = self.is_at_ease and spare_bytes >= 0
            self._calm_bytes = min(self._calm_bytes, end.n_bytes + spare_bytes)
            self._calm_events = min(self._calm_events, end.event_id + spare_events)
        mildest = min(decisions.values(), default=Decision.RUN)
        return mildest, [reader_id for reader_id, decision in decisions.items() if decision is Decision.DROP]

    def skip(self, reader_ids: Iterable[ReaderId], end: Cursor, now_s: float) -> None:
        """Skip what waits for these readers."""
        for reader_id in reader_ids:
            self.by_id[reader_id].skip_to(end, now_s)

    def dismiss(self, reader_ids: Iterable[ReaderId]) -> None:
        """Dismiss these readers: each gets its last event and nothing else."""
        for reader_id in reader_ids:
            self.by_id[reader_id].is_dismissed = True

    def remove_status_line(self, backlog: Backlog, now_s: float) -> None:
        """Remove the status line, since an event is about to come. Readers that have every event still get it."""
        for reader in self.by_id.values():
            reader.keep_status_line(backlog, now_s)
        backlog.status_line = b""

    def slowest(self, end: Cursor) -> Cursor:
        """The cursor before which every listener has got everything."""
        if len(self.by_id) == 1:
            (only,) = self.by_id.values()
            return end if only.is_dismissed else only.cursor
        return min((reader.cursor for _, reader in self._listeners()), default=end)

    def is_done(self, end: Cursor) -> bool:
        """True when everything was written to every reader."""
        for reader in self.by_id.values():
            if not reader.is_done(end):
                return False
        return True

    def observe(self, end: Cursor, now_s: float, unsent_bytes: Mapping[ReaderId, int]) -> None:
        """Note which readers took something. A transport that is not named holds as much as before."""
        for reader_id, reader in self.by_id.items():
            reader.observe(end, now_s, unsent_bytes.get(reader_id))

    def stalled(self, end: Cursor, now_s: float, *, is_over: bool) -> list[ReaderId]:
        """Readers that take nothing of what is left: dismissed ones, and all where the response has ended."""
        timeout_s = self._policy.stall_timeout_s
        assert timeout_s is not None, "every policy has this timeout"
        return [
            reader_id
            for reader_id, reader in self.by_id.items()
            if (is_over or reader.is_dismissed) and reader.stalled_s(end, now_s) > timeout_s
        ]

    def hoarding(self, end: Cursor, now_s: float, ended_s: float) -> list[ReaderId]:
        """Readers of an ended response that hold too much while memory is full.

        These readers have more than the low-water mark to take, and have taken nothing for a moment or have had their
        time.
        """
        policy = self._policy
        after_s = _USUAL_DROP_AFTER_S if policy.drop_after_s is None else policy.drop_after_s
        return [
            reader_id
            for reader_id, reader in self._listeners()
            if reader.waiting_bytes(end) > policy.low_mark_bytes
            and (reader.stalled_s(end, now_s) > _MOMENT_S or now_s - max(ended_s, reader.came_s) > after_s)
        ]

    def silent(self, end: Cursor, now_s: float, after_s: float) -> list[ReaderId]:
        """Readers that have everything and were written nothing for `after_s`."""
        return [reader_id for reader_id, reader in self._listeners() if reader.is_silent(end, now_s, after_s)]

    def quiet_until_s(self, end: Cursor, after_s: float) -> float:
        """When the first reader will have been silent for `after_s` (0: never); 0 if a reader lacks something."""
        if not all(reader.has_all(end) for reader in self.by_id.values()):
            return 0.0
        if not after_s:
            return math.inf
        return min((reader.wrote_s for reader in self.by_id.values()), default=math.inf) + after_s

    def _listeners(self) -> Iterator[tuple[ReaderId, Reader]]:
        return ((reader_id, reader) for reader_id, reader in self.by_id.items() if not reader.is_dismissed)


class Backpressure:
    """Decides whether the sequences of one response run, and remembers what it decided last. They begin running."""

    __slots__ = ("_backlog", "_budget", "_current", "_held_since_s", "_readers", "_terms")

    def __init__(self, terms: StreamTerms, readers: Readers, backlog: Backlog, budget: Budget) -> None:
        self._terms = terms
        self._readers = readers
        self._backlog = backlog
        self._budget = budget
        self._current = Decision.RUN
        """The last decision that the engine got."""
        self._held_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """True while the sequences are paused or parked."""
        return self._current is not Decision.RUN

    def attended(self, rids: Iterable[Rid], now_s: float, *, may_return: bool) -> tuple[Decision, tuple[Effect, ...]]:
        """Decide for a response with readers. Each reader that is too slow is dismissed with a last event.

        The decision `DROP` means that every reader is too slow. What waits for them is skipped. If the response goes on
        without readers (`may_return`), each reader gets its last event; else all of them get the end of the response.
        """
        end = self._backlog.end
        mildest, slow = self._readers.judge(end, now_s, self._budget.pressure)
        if slow:
            self._readers.skip(slow, end, now_s)
            if mildest is Decision.DROP and not may_return:
                return mildest, ()
            self._readers.dismiss(slow)
        last_events = tuple(EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in slow)
        if mildest is Decision.DROP or mildest is self._current:
            return mildest, last_events
        return mildest, (*last_events, *self._change(mildest, rids, now_s))

    def detached(self, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        """Decide for a response without readers. Held sequences stay held, since the backlog does not shrink."""
        if not self.is_held:
            wanted = Decision.PAUSE if self._is_ahead else Decision.RUN
        else:
            after_s = self._terms.policy.park_after_s
            is_long = after_s is not None and now_s - self._held_since_s >= after_s
            wanted = Decision.PARK if is_long else self._current
        return self._change(wanted, rids, now_s)

    @property
    def _is_ahead(self) -> bool:
        """True when a detached stream has generated more than its limit."""
        retention = self._terms.retention
        has_room = retention is not None and self._backlog.n_waiting < retention.ahead_tokens
        return not has_room or self._backlog.is_full or self._budget.pressure is not Pressure.NONE

    def _change(self, wanted: Decision, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        if wanted is self._current or (wanted is Decision.PAUSE and self.is_held):
            return ()
        if not self.is_held:
            self._held_since_s = now_s
        self._current = wanted
        return (SetFlow(tuple(rids), _FLOW[wanted]),)
