"""For how long a response is kept that nobody reads: without a reader before its end, and after it."""

from __future__ import annotations

import math

from sluiceway.response.terms import Retention


class Keeping:
    """Times are seconds of one monotonic clock. Without retention nothing is kept, and no time is over."""

    __slots__ = ("_retention", "since_s")

    def __init__(self, retention: Retention | None, now_s: float) -> None:
        self._retention = retention
        self.since_s = now_s
        """When the last reader left, or the response ended."""

    @property
    def until_s(self) -> float:
        """When a response that has ended is let go."""
        return math.inf if self._retention is None else self.since_s + self._retention.ttl_s

    def is_past_grace(self, now_s: float) -> bool:
        """Whether a response that has not ended was without a reader for too long."""
        return self._retention is not None and now_s - self.since_s >= self._retention.grace_s

    def is_past_end(self, now_s: float) -> bool:
        """Whether a response that has ended was kept for long enough."""
        return now_s >= self.until_s
