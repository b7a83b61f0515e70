"""What all streams of a process hold together, in bytes and in events: known at any time, and bounded.

The bound holds for all that is above the low-water mark of its reader, since nobody pays for others who holds no more
than that: streams together hold at most the bound and one low-water mark each. What follows from pressure is decided
by each stream's policy (`policy.decide`); what is only kept for a replay is let go first.
"""

from __future__ import annotations

from sluiceway.errors import ConfigError, InvariantError
from sluiceway.stream.policy import Pressure

_TIGHT = 0.75
"""The part of the bound from which on there is pressure: what is on its way when a request is paused finds room."""


class Budget:
    """One per process. Every stream says what it takes and what it gives back."""

    __slots__ = ("_max_bytes", "_max_events", "_tight_bytes", "_tight_events", "n_bytes", "n_events")

    def __init__(self, *, max_bytes: int, max_events: int) -> None:
        for field, value in (("max_bytes", max_bytes), ("max_events", max_events)):
            if value < 1:
                raise ConfigError(field, f"must be at least 1, not {value}")
        self._max_bytes, self._tight_bytes = max_bytes, max_bytes * _TIGHT
        self._max_events, self._tight_events = max_events, max_events * _TIGHT
        self.n_bytes = 0
        self.n_events = 0

    @property
    def pressure(self) -> Pressure:
        """How near the bound is."""
        if self.n_bytes <= self._tight_bytes and self.n_events <= self._tight_events:
            return Pressure.NONE
        is_full = self.n_bytes > self._max_bytes or self.n_events > self._max_events
        return Pressure.FULL if is_full else Pressure.TIGHT

    def hold(self, n_bytes: int) -> None:
        """One more event is held."""
        self.n_bytes += n_bytes
        self.n_events += 1

    def release(self, n_bytes: int, n_events: int) -> None:
        """Raises `InvariantError` for more than is held."""
        if n_bytes > self.n_bytes or n_events > self.n_events:
            raise InvariantError(f"{n_bytes} bytes of {n_events} events are released, but less is held")
        self.n_bytes -= n_bytes
        self.n_events -= n_events
