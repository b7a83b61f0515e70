"""One reader of a response: how far it has got, since when it takes nothing, and what it alone is to be told.

A reader may be *dismissed*: it gets a last word of its own in place of what waits for it, and the response goes on
without it. What is put *aside* for it (such a last word, or a comment that keeps its connection alive) is no event of
the response.

What this file does not know: what follows from how the reader stands.
"""

from __future__ import annotations

import msgspec

from sluiceway.errors import InvariantError
from sluiceway.response.policy import Measure, Pressure
from sluiceway.response.replay import Place, Replay
from sluiceway.types import Piece

WRITE_BYTES = 8 * 1024
"""What is joined for one write. What a transport was given it holds, however little it takes at a time: a reader that
has stopped shall not find more there than its marks have room for."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Whole events for one write. After the last one its reader gets nothing more."""

    data: Piece
    is_last: bool
    has_more: bool = False
    """Whether more waits than fits into one write."""


class Reader:
    """Changed only by its stream. Times are seconds of one monotonic clock."""

    __slots__ = (
        "_aside",
        "_batch_bytes",
        "_behind_since_s",
        "_handed_bytes",
        "_joined",
        "_noticed",
        "_pending",
        "_taken_bytes",
        "_took_s",
        "_unsent_bytes",
        "came_s",
        "is_dismissed",
        "place",
        "wrote_s",
    )

    def __init__(self, place: Place, joined: Place, now_s: float) -> None:
        self.place = place
        """Up to here it was written."""
        self._joined = joined
        """What was there before is replayed to it and no sign that it is slow."""
        self.is_dismissed = False
        self._pending: Place | None = None
        self._batch_bytes = 0
        self._aside = self._noticed = b""
        self._handed_bytes = self._taken_bytes = self._unsent_bytes = 0
        self._took_s = self.wrote_s = self.came_s = now_s
        self._behind_since_s: float | None = None

    def take(self, replay: Replay) -> Batch | None:
        """What is to be written next; None if nothing is, or while the batch before it is being written."""
        if self._pending is not None or not (self._has_work(replay.end) or self._lacks_notice(replay)):
            return None
        data: Piece = self._aside
        self._pending = self.place
        if not self.is_dismissed and self.place.event_id < replay.end.event_id:
            events, self._pending = replay.read(self.place, WRITE_BYTES)
            data = b"".join((data, events)) if data else events
        self._aside = b""
        if replay.notice and self._pending.event_id == replay.end.event_id and self._lacks_notice(replay):
            data, self._noticed = b"".join((data, replay.notice)), replay.notice
        self._batch_bytes = len(data)
        if self.is_dismissed or self._pending.event_id == replay.end.event_id:
            return Batch(data, self.is_dismissed or replay.is_ended)
        return Batch(data, False, True)

    def wrote(self, end: Place, now_s: float, unsent_bytes: int) -> None:
        """The batch was handed to the transport, which holds that many bytes now."""
        if self._pending is None:
            raise InvariantError("a batch was written that nobody took")
        self.place, self._pending = self._pending, None
        self._handed_bytes += self._batch_bytes
        self.wrote_s = now_s
        self.observe(end, now_s, unsent_bytes)

    def observe(self, end: Place, now_s: float, unsent_bytes: int | None = None) -> None:
        """Note whether the reader took something; None: the transport holds what it held."""
        if unsent_bytes is not None:
            self._unsent_bytes = unsent_bytes
        taken_bytes = self._handed_bytes - self._unsent_bytes
        if taken_bytes > self._taken_bytes or self.has_all(end):
            self._took_s = now_s
        self._taken_bytes = taken_bytes

    def note_behind(self, is_behind: bool, now_s: float) -> None:
        """It is behind, or it is not."""
        if not is_behind:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now_s

    def measure(self, end: Place, now_s: float, pressure: Pressure) -> Measure:
        """How it stands."""
        since_s, place = self._behind_since_s, max(self.place, self._joined)
        return Measure(
            end.n_bytes - place.n_bytes,
            end.event_id - place.event_id,
            self._unsent_bytes,
            self.stalled_s(end, now_s),
            None if since_s is None else now_s - since_s,
            pressure,
        )

    def stalled_s(self, end: Place, now_s: float) -> float:
        """Since it took something; 0 if there is nothing to take."""
        return 0.0 if self.has_all(end) else now_s - self._took_s

    def waiting_bytes(self, end: Place) -> int:
        """What it has yet to take, wherever that is."""
        return end.n_bytes - self.place.n_bytes + self._unsent_bytes

    def has_all(self, end: Place) -> bool:
        """Whether nothing waits for it anywhere."""
        return not self._unsent_bytes and self.is_done(end)

    def is_done(self, end: Place) -> bool:
        """Whether everything was written to it."""
        return self._pending is None and not self._has_work(end)

    def is_silent(self, end: Place, now_s: float, after_s: float) -> bool:
        """Whether it has everything and was written nothing for so long."""
        return self.has_all(end) and not self.is_dismissed and now_s - self.wrote_s >= after_s

    def set_aside(self, frame: bytes, now_s: float) -> None:
        """Write this next, as no event of the response."""
        self._aside += frame
        self.wrote_s = now_s

    def hold_notice(self, replay: Replay, now_s: float) -> None:
        """The notice is about to be past: write it before what comes, if this reader has everything and lacks it."""
        if self._lacks_notice(replay) and (self._pending or self.place) == replay.end:
            self.set_aside(replay.notice, now_s)

    def skip_to(self, end: Place, now_s: float) -> None:
        """It shall not get what waits for it. From here on it has its time anew to take what it gets instead."""
        self.place = end
        if self._pending is not None:
            self._pending = end
        self._aside = b""
        self._took_s = now_s
        self._behind_since_s = None

    def _lacks_notice(self, replay: Replay) -> bool:
        return bool(replay.notice) and replay.notice is not self._noticed and not self.is_dismissed

    def _has_work(self, end: Place) -> bool:
        return bool(self._aside) or (not self.is_dismissed and self.place.event_id < end.event_id)
