"""Counters, gauges and histograms. Some count once per token, so each costs a fraction of a microsecond."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar


class Counter:
    """A number that rises: add to its `value`.

    It also follows a counter of another process, and continues when that one restarts.
    """

    __slots__ = ("_last", "value")

    def __init__(self) -> None:
        self._last: float = 0
        self.value: float = 0

    def follow(self, value: float) -> None:
        """Add what the followed counter has gained. If it has fallen, it has restarted from zero."""
        self.value += value - self._last if value >= self._last else value
        self._last = value


class GaugeValue:
    """A number that rises and falls."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts values by upper bound (inclusive), with an unbounded bucket at the end."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are in ascending order."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus wants them: (upper bound, number of values up to it), the last bound `+Inf`."""
        buckets: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        return buckets


InstrumentT = TypeVar("InstrumentT", bound=Counter | GaugeValue | Histogram)


class Labelled(dict[str, InstrumentT], Generic[InstrumentT]):
    """One instrument for each value of a label.

    With `values` these are all: another value raises `KeyError`. Without, an instrument is made when it is first used.
    """

    def __init__(self, make: Callable[[], InstrumentT], values: Iterable[str] | None = None) -> None:
        super().__init__((value, make()) for value in values or ())
        self._make = make
        self._is_open = values is None

    def __missing__(self, value: str) -> InstrumentT:
        if not self._is_open:
            raise KeyError(value)
        made = self[value] = self._make()
        return made
