"""The readers of one response: who is there, how each stands, and what follows for all of them together.

Of several readers the mildest decision counts, so that one who is slow holds nobody up; those whose own decision is to
drop are named. A *calm* audience (nobody is behind) need not be judged again before the response has grown by what the
first of them may still be sent: that keeps the judging out of the way of each event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.policy import MAX_AMOUNT, Decision, Policy, Pressure, decide, is_behind, spare
from sluiceway.response.reader import Reader
from sluiceway.response.replay import Place, Replay

_MOMENT_S = 2.0
_USUAL_DROP_AFTER_S = 30.0
"""Where the policy has no time after which a reader that is behind is dropped."""


class Audience:
    """Changed only by its stream."""

    __slots__ = ("_calm_bytes", "_calm_events", "_last_id", "_policy", "is_at_ease", "readers")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._last_id = 0
        self._calm_bytes = self._calm_events = -1
        self.is_at_ease = False
        """Whether nobody was behind when it was judged last, and nobody has come since."""
        self.readers: dict[ReaderId, Reader] = {}

    def admit(self, place: Place, end: Place, now_s: float) -> ReaderId:
        """A reader that goes on from this place."""
        self._last_id += 1
        self.readers[self._last_id] = Reader(place, end, now_s)
        self._calm_bytes = self._calm_events = -1
        self.is_at_ease = False
        return self._last_id

    @property
    def listens(self) -> bool:
        """Whether somebody is there who was not dismissed."""
        return any(not reader.is_dismissed for reader in self.readers.values())

    def is_calm(self, end: Place) -> bool:
        """Whether judging can tell nothing new, as far as what waits goes. Time and pressure are others' matter."""
        return end.n_bytes <= self._calm_bytes and end.event_id <= self._calm_events

    def judge(self, end: Place, now_s: float, pressure: Pressure) -> tuple[Decision, list[ReaderId]]:
        """What shall be upstream, and who is to be dropped. Without listeners: to let it flow."""
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
        mildest = min(decisions.values(), default=Decision.FLOW)
        return mildest, [reader_id for reader_id, decision in decisions.items() if decision is Decision.DROP]

    def skip(self, reader_ids: Iterable[ReaderId], end: Place, now_s: float) -> None:
        """These readers do not get what waits for them."""
        for reader_id in reader_ids:
            self.readers[reader_id].skip_to(end, now_s)

    def dismiss(self, reader_ids: Iterable[ReaderId]) -> None:
        """These readers get nothing more but their last word."""
        for reader_id in reader_ids:
            self.readers[reader_id].is_dismissed = True

    def pass_notice(self, replay: Replay, now_s: float) -> None:
        """An event is about to come: the notice is past, and only those that have everything get it still."""
        for reader in self.readers.values():
            reader.hold_notice(replay, now_s)
        replay.notice = b""

    def slowest(self, end: Place) -> Place:
        """Every listener has got what is before this place."""
        if len(self.readers) == 1:
            (only,) = self.readers.values()
            return end if only.is_dismissed else only.place
        return min((reader.place for _, reader in self._listeners()), default=end)

    def is_done(self, end: Place) -> bool:
        """Whether everything was written to everyone."""
        return all(reader.is_done(end) for reader in self.readers.values())

    def observe(self, end: Place, now_s: float, unsent_bytes: Mapping[ReaderId, int]) -> None:
        """Note who took something; a transport that is not named holds what it held."""
        for reader_id, reader in self.readers.items():
            reader.observe(end, now_s, unsent_bytes.get(reader_id))

    def stalled(self, end: Place, now_s: float, *, is_over: bool) -> list[ReaderId]:
        """Who does not take what is left for it: where the response is over, or for the dismissed."""
        timeout_s = self._policy.stall_timeout_s
        assert timeout_s is not None, "every policy has this timeout"
        return [
            reader_id
            for reader_id, reader in self.readers.items()
            if (is_over or reader.is_dismissed) and reader.stalled_s(end, now_s) > timeout_s
        ]

    def hoarding(self, end: Place, now_s: float, ended_s: float) -> list[ReaderId]:
        """Who holds others' memory, now that the response is over and memory is full: readers with more than the
        low-water mark to take that have taken nothing for a moment, or that have had their time."""
        policy = self._policy
        after_s = _USUAL_DROP_AFTER_S if policy.drop_after_s is None else policy.drop_after_s
        return [
            reader_id
            for reader_id, reader in self._listeners()
            if reader.waiting_bytes(end) > policy.low_mark_bytes
            and (reader.stalled_s(end, now_s) > _MOMENT_S or now_s - max(ended_s, reader.came_s) > after_s)
        ]

    def silent(self, end: Place, now_s: float, after_s: float) -> list[ReaderId]:
        """Who has everything and was written nothing for so long."""
        return [reader_id for reader_id, reader in self._listeners() if reader.is_silent(end, now_s, after_s)]

    def quiet_until_s(self, end: Place, after_s: float) -> float:
        """When the first will have been silent for so long (0: that is no matter); 0 if one lacks something."""
        if not all(reader.has_all(end) for reader in self.readers.values()):
            return 0.0
        if not after_s:
            return math.inf
        return min((reader.wrote_s for reader in self.readers.values()), default=math.inf) + after_s

    def _listeners(self) -> Iterator[tuple[ReaderId, Reader]]:
        return ((reader_id, reader) for reader_id, reader in self.readers.items() if not reader.is_dismissed)
