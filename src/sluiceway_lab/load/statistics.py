"""Summarises numbers: percentiles of one run, the spread over repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """The spread of a figure over `n` repeats."""

    min: float
    median: float
    max: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Needs at least one value."""
    return Spread(min(values), statistics.median(values), max(values), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that at least `percent` of the values do not exceed. Needs at least one value."""
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `name_p50_s` and so on; nothing without values."""
    if not values:
        return {}
    points = {f"{name}_p{percent}_s": percentile(values, percent) for percent in (50, 90, 99)}
    return {f"{name}_min_s": min(values), **points, f"{name}_max_s": max(values)}
