"""Counts what each caller has in a bounded table, so that a full table takes from the caller that has the most.

A table without such counts would drop its oldest entry, so one caller could push out the entries of another.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Shares(Generic[T]):
    """Entries by caller, the oldest first. An operation takes time that grows with the logarithm of callers."""

    def __init__(self) -> None:
        self._things: dict[str, dict[T, int]] = {}
        """Entries with their weights, by caller."""
        self._totals: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Callers by total, the largest first. An entry with an outdated total is skipped."""
        self._n_changes = 0

    def add(self, caller: str, thing: T, weight: int = 1) -> None:
        """Add an entry as the newest of this caller. An entry that is there already moves, and takes the new weight."""
        things = self._things.setdefault(caller, {})
        if thing in things:
            self._changed(caller, self._totals[caller] - things.pop(thing))
        things[thing] = weight
        self._changed(caller, self._totals.get(caller, 0) + weight)

    def drop(self, caller: str, thing: T) -> None:
        """Remove an entry of this caller. Idempotent."""
        things = self._things.get(caller)
        if things is None or thing not in things:
            return
        self._changed(caller, self._totals[caller] - things.pop(thing))
        if not things:
            del self._things[caller], self._totals[caller]

    def of(self, caller: str) -> Iterable[T]:
        """The entries of this caller, the oldest first."""
        return self._things.get(caller, ())

    def excess(self, caller: str | None) -> T:
        """The entry to drop when `caller` has added one too many: the oldest of the caller that has the most.

        When `caller` has as much as any other, it loses an entry of its own, so it never pushes out another caller's.
        Raises `LookupError` when the table is empty.
        """
        while self._heap and self._totals.get(self._heap[0][2]) != -self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            raise LookupError("the table is empty")
        most, _, owner = self._heap[0]
        if caller is not None and self._totals.get(caller) == -most:
            owner = caller
        return next(iter(self._things[owner]))

    def _changed(self, caller: str, total: int) -> None:
        self._totals[caller] = total
        self._n_changes += 1
        if len(self._heap) > 2 * len(self._totals) + 64:  # most of it is out of date
            self._heap = [(-one, 0, name) for name, one in self._totals.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (-total, self._n_changes, caller))
