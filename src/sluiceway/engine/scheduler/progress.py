"""How far requests are before their first token, for clients that want to know: their place in the queue, their prompt.

A request may have several sequences; it is as far as the foremost of them. What there is to tell is told at once when a
request is new, then at most every `TELL_S`, and only what is news. Nobody who did not ask costs anything.

What this file does not know: clocks, and what becomes of what it tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sluiceway.engine.scheduler.request import Request
from sluiceway.types import Progress, Rid

TELL_S = 0.25
"""Often enough for a person who waits, and rarely enough to cost no step anything."""


class _Watched:
    """The sequences of one request, and what was told of it last."""

    __slots__ = ("due_s", "sequences", "told")

    def __init__(self, sequences: Sequence[Request]) -> None:
        self.sequences = sequences
        self.due_s = -math.inf
        self.told: Progress | None = None

    @property
    def rid(self) -> Rid:
        """By this id it is told."""
        return self.sequences[0].rid

    def progress(self, places: Mapping[Rid, int]) -> Progress | None:
        """None while it stands nowhere: its reader has left, and it was parked."""
        seated = [request for request in self.sequences if request.is_seated or request.n_generated]
        if seated:
            foremost = max(seated, key=lambda request: min(request.n_computed, request.n_prompt))
            return Progress(0, min(foremost.n_computed, foremost.n_prompt), foremost.n_prompt)
        queued = [place for request in self.sequences if (place := places.get(request.rid))]
        return Progress(min(queued), 0, self.sequences[0].n_prompt) if queued else None


class Watch:
    """True while somebody asks. Changed only by its scheduler."""

    def __init__(self) -> None:
        self._watched: dict[Rid, _Watched] = {}
        """By the id of each sequence."""
        self._begun: list[Rid] = []
        """By an id of each request that has had its first token since the news were asked for last."""
        self._due_s = math.inf

    def __bool__(self) -> bool:
        return bool(self._watched)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._watched

    def add(self, sequences: Sequence[Request]) -> None:
        """The sequences of one request, which were admitted together."""
        watched = _Watched(sequences)
        self._watched.update((request.rid, watched) for request in sequences)
        self._due_s = -math.inf

    def begun(self, rid: Rid) -> None:
        """A sequence has its first token: what is due is told with it, and nothing after it. Idle for one that is not
        watched."""
        if rid in self._watched:
            self._begun.append(rid)

    def drop(self, rid: Rid) -> None:
        """A sequence has ended, and with it the wait of its request. Idle for one that is not watched."""
        watched = self._watched.get(rid)
        if watched is not None:
            for request in watched.sequences:
                del self._watched[request.rid]

    def news(self, queue: Iterable[Rid], now_s: float) -> list[tuple[Rid, Progress]]:
        """What is due and has changed, by the first id of each request. Those that have their first token are dropped.

        `queue` are those that wait, the next to be admitted first; it is read only if something is due.
        """
        news = self._due_news(queue, now_s) if now_s >= self._due_s else []
        for rid in self._begun:
            self.drop(rid)
        self._begun.clear()
        return news

    def _due_news(self, queue: Iterable[Rid], now_s: float) -> list[tuple[Rid, Progress]]:
        due = {watched.rid: watched for watched in self._watched.values() if watched.due_s <= now_s}
        places = {rid: place for place, rid in enumerate(queue, 1)} if due else {}
        news = [(watched.rid, progress) for watched in due.values() if (progress := _change(watched, places, now_s))]
        self._due_s = min((watched.due_s for watched in self._watched.values()), default=math.inf)
        return news


def _change(watched: _Watched, places: Mapping[Rid, int], now_s: float) -> Progress | None:
    """What has changed since it was told last: that is told now."""
    watched.due_s = now_s + TELL_S
    progress = watched.progress(places)
    if progress == watched.told:
        return None
    watched.told = progress
    return progress
