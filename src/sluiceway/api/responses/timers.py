"""When to look at each response again: a timer wheel, so that a tick touches only what is due."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class TimerWheel(Generic[T]):
    """Items by the tick at which they are due; each item has one timer. The cost of an operation does not grow."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._last_tick = -1
        """The last tick whose items were returned."""
        self._by_tick: dict[int, dict[T, None]] = {}
        self._tick_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._tick_of)

    def set(self, item: T, at_s: float) -> None:
        """Set the only timer of this item; a past time means the next tick, and infinity means no timer."""
        if at_s == math.inf:
            self.drop(item)
        else:
            self._put(item, max(math.ceil(at_s / self._tick_s), self._last_tick + 1))

    def set_next(self, item: T) -> None:
        """Set the only timer of this item to the next tick."""
        if self._tick_of.get(item) != self._last_tick + 1:  # this runs with each write to a slow reader
            self._put(item, self._last_tick + 1)

    def drop(self, item: T) -> None:
        """Remove the timer of this item. Idempotent."""
        tick = self._tick_of.pop(item, None)
        if tick is not None:
            items = self._by_tick[tick]
            del items[item]
            if not items:
                del self._by_tick[tick]

    def due(self, now_s: float) -> list[T]:
        """Remove and return the items that are due."""
        now = max(math.floor(now_s / self._tick_s), self._last_tick + 1)
        ticks = [tick for tick in self._by_tick if tick <= now]
        self._last_tick = now
        found = [item for tick in sorted(ticks) for item in self._by_tick.pop(tick)]
        for item in found:
            del self._tick_of[item]
        return found

    def _put(self, item: T, tick: int) -> None:
        if item in self._tick_of:
            self.drop(item)
        self._tick_of[item] = tick
        self._by_tick.setdefault(tick, {})[item] = None
