"""What is to be looked at, and when: no more is touched at a time than is due, however much there is."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Agenda(Generic[T]):
    """Things by the tick at which they are due; each stands there once. All steps take a time that does not grow."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._done = -1
        """The last tick whose things were given out."""
        self._by_tick: dict[int, dict[T, None]] = {}
        self._tick_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._tick_of)

    def plan(self, thing: T, at_s: float) -> None:
        """Look at it then, or at the next tick if that is past, and at no other time; infinity: not at all."""
        if at_s == math.inf:
            self.drop(thing)
        else:
            self._put(thing, max(math.ceil(at_s / self._tick_s), self._done + 1))

    def plan_next(self, thing: T) -> None:
        """Look at it at the next tick, and at no other time."""
        self._put(thing, self._done + 1)

    def drop(self, thing: T) -> None:
        """Idempotent."""
        tick = self._tick_of.pop(thing, None)
        if tick is not None:
            things = self._by_tick[tick]
            del things[thing]
            if not things:
                del self._by_tick[tick]

    def due(self, now_s: float) -> list[T]:
        """What is due; from now on it stands here no more."""
        now = max(math.floor(now_s / self._tick_s), self._done + 1)
        ticks = [tick for tick in self._by_tick if tick <= now]
        self._done = now
        found = [thing for tick in sorted(ticks) for thing in self._by_tick.pop(tick)]
        for thing in found:
            del self._tick_of[thing]
        return found

    def _put(self, thing: T, tick: int) -> None:
        if self._tick_of.get(thing) != tick:
            self.drop(thing)
            self._tick_of[thing] = tick
            self._by_tick.setdefault(tick, {})[thing] = None
