"""Reports the progress of requests before their first token: their place in the queue, or how much prompt is computed.

A request may have several sequences; the foremost of them counts. A new request is reported immediately, then at most
every `REPORT_S`, and only when its progress has changed. Requests that did not ask for progress cost nothing.

What this file does not know: clocks, and who gets the reports.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Iterable, Mapping

from sluiceway.engine.scheduler.sequence import Sequence
from sluiceway.ipc.messages.to_api import Progressed
from sluiceway.types import Progress, Rid

REPORT_S = 0.25
"""Often enough for a person who waits, and rare enough to cost no step anything."""


class _WatchedRequest:
    """The sequences of one request, and its last report."""

    __slots__ = ("due_s", "reported", "sequences")

    def __init__(self, sequences: abc.Sequence[Sequence]) -> None:
        self.sequences = sequences
        self.due_s = -math.inf
        self.reported: Progress | None = None

    @property
    def rid(self) -> Rid:
        """The id under which the request is reported."""
        return self.sequences[0].rid

    def progress(self, places: Mapping[Rid, int]) -> Progress | None:
        """The progress now; None while all its sequences are parked."""
        started = [sequence for sequence in self.sequences if sequence.has_slot or sequence.n_generated]
        if started:
            foremost = max(started, key=lambda sequence: min(sequence.n_computed, sequence.n_prompt))
            return Progress(0, min(foremost.n_computed, foremost.n_prompt), foremost.n_prompt)
        queued = [place for sequence in self.sequences if (place := places.get(sequence.rid))]
        return Progress(min(queued), 0, self.sequences[0].n_prompt) if queued else None

    def change(self, places: Mapping[Rid, int], now_s: float) -> Progress | None:
        """The progress if it has changed since the last report, which this call then is."""
        self.due_s = now_s + REPORT_S
        progress = self.progress(places)
        if progress == self.reported:
            return None
        self.reported = progress
        return progress


class ProgressReporter:
    """The requests whose progress is reported. It is true while there are any."""

    def __init__(self) -> None:
        self._watched: dict[Rid, _WatchedRequest] = {}
        """By the id of each sequence."""
        self._started: list[Rid] = []
        """Sequences that got their first token since the last `reports`."""
        self._due_s = math.inf

    def __bool__(self) -> bool:
        return bool(self._watched)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._watched

    def add(self, sequences: abc.Sequence[Sequence]) -> None:
        """Report the progress of these sequences, which are one request."""
        watched = _WatchedRequest(sequences)
        self._watched.update((sequence.rid, watched) for sequence in sequences)
        self._due_s = -math.inf

    def started(self, rid: Rid) -> None:
        """Note the first token of a sequence: its request is reported once more if it is due, and then dropped."""
        if rid in self._watched:
            self._started.append(rid)

    def drop(self, rid: Rid) -> None:
        """Stop reporting the request of this sequence, which has finished. Ignores other sequences."""
        watched = self._watched.get(rid)
        if watched is not None:
            for sequence in watched.sequences:
                del self._watched[sequence.rid]

    def reports(self, queue: Iterable[Rid], now_s: float) -> list[Progressed]:
        """Reports that are due and have changed. Requests that got their first token are dropped.

        `queue` has the waiting sequences, the next one first. It is read only if a report is due.
        """
        reports = self._due_reports(queue, now_s) if now_s >= self._due_s else []
        for rid in self._started:
            self.drop(rid)
        self._started.clear()
        return reports

    def _due_reports(self, queue: Iterable[Rid], now_s: float) -> list[Progressed]:
        due = {watched.rid: watched for watched in self._watched.values() if watched.due_s <= now_s}
        places = {rid: place for place, rid in enumerate(queue, 1)} if due else {}
        reports = [
            Progressed(watched.rid, progress) for watched in due.values() if (progress := watched.change(places, now_s))
        ]
        self._due_s = min((watched.due_s for watched in self._watched.values()), default=math.inf)
        return reports
