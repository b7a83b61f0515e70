"""The memory that all streams of a process hold together, in bytes and in events: always known, and bounded.

The bound holds for everything above the low-water mark of each reader: a stream below that mark never pays for others.
So streams together hold at most the bound, and one low-water mark each. What follows from pressure is decided by the
policy of each stream (`policy.decide`).

Before there is pressure, the budget evicts responses that are only *kept*: they have ended, and no client reads them.
It takes the oldest one of the caller that keeps the most. So a caller that keeps more than others takes memory from
itself alone. Kept responses are bounded in number too, since each costs more than its events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from sluiceway.errors import ConfigError, InvariantError
from sluiceway.response.policy import Pressure
from sluiceway.response.shares import Shares
from sluiceway.types import Piece

_TIGHT = 0.75
"""Above this part of the bound there is pressure. The rest is for events that are on their way during a pause."""

MUCH_BYTES = 1024 * 1024
"""More than this is freed in several steps: freeing 5 MiB takes the system a millisecond."""


class Budget:
    """Counts what the streams of a process hold, and evicts kept responses before memory is short."""

    __slots__ = (
        "_kept",
        "_max_bytes",
        "_max_events",
        "_max_kept",
        "_shares",
        "_tight_bytes",
        "_tight_events",
        "_to_free",
        "n_bytes",
        "n_events",
        "pressure",
    )

    def __init__(self, *, max_bytes: int, max_events: int, max_kept: int = 1024) -> None:
        for field, value in (("max_bytes", max_bytes), ("max_events", max_events), ("max_kept", max_kept)):
            if value < 1:
                raise ConfigError(field, f"must be at least 1, not {value}")
        self._max_kept = max_kept
        self._kept: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        """For each kept response its caller, and the function that evicts it."""
        self._shares: Shares[Hashable] = Shares()
        self._max_bytes, self._tight_bytes = max_bytes, max_bytes * _TIGHT
        self._max_events, self._tight_events = max_events, max_events * _TIGHT
        self.n_bytes = 0
        self.n_events = 0
        self.pressure = Pressure.NONE
        """How near the bound is. Kept as an attribute, since every event reads it."""
        self._to_free: deque[list[Piece]] = deque()
        """Released pieces whose memory is not freed yet."""

    @property
    def max_answer_bytes(self) -> int:
        """The largest whole answer: a larger one would put all other streams under pressure."""
        return int(self._tight_bytes)

    def hold(self, n_bytes: int, n_events: int = 1) -> None:
        """Count one more event, or more bytes of an answer that is gathered."""
        self.n_bytes += n_bytes
        self.n_events += n_events
        if self.n_bytes > self._tight_bytes or self.n_events > self._tight_events:
            self._make_room()

    def keep(self, response: Hashable, evict: Callable[[], None], caller: str = "", n_bytes: int = 0) -> None:
        """Keep a response that is over and has no reader, until `evict` is called. Idempotent."""
        if response in self._kept:
            return
        self._kept[response] = (caller, evict)
        # In units of what each has where all are kept, so that a few bytes more are no reason to lose to newcomers.
        unit_bytes = max(1, self._max_bytes // self._max_kept)
        self._shares.add(caller, response, 1 + n_bytes // unit_bytes)
        if len(self._kept) > self._max_kept:
            self._evict_one(caller)

    def reclaim(self, response: Hashable) -> None:
        """Stop keeping a response: it has a reader again, or holds nothing any more. Idempotent."""
        if response in self._kept:
            caller, _ = self._kept.pop(response)
            self._shares.drop(caller, response)

    def release(self, n_bytes: int, n_events: int) -> None:
        """Count events that are held no more. Raises `InvariantError` for more than is held."""
        if n_bytes > self.n_bytes or n_events > self.n_events:
            raise InvariantError(f"{n_bytes} bytes of {n_events} events are released, but less is held")
        self.n_bytes -= n_bytes
        self.n_events -= n_events
        if self.pressure:
            self.pressure = self._current_pressure()

    @property
    def has_memory_to_free(self) -> bool:
        """True when released memory is still to be freed."""
        return bool(self._to_free)

    def free_later(self, pieces: list[Piece]) -> None:
        """Free these released pieces, which no object uses any more. `free_some` frees a large list step by step."""
        if sum(map(len, pieces)) > MUCH_BYTES:
            self._to_free.append(pieces)

    def free_some(self, max_bytes: int) -> int:
        """Free about `max_bytes` of what was released. Returns how many bytes were freed."""
        n_bytes = 0
        while self._to_free and n_bytes < max_bytes:
            pieces = self._to_free[0]
            while pieces and n_bytes < max_bytes:
                n_bytes += len(pieces.pop())
            if not pieces:
                self._to_free.popleft()
        return n_bytes

    def _make_room(self) -> None:
        self.pressure = self._current_pressure()
        while self._kept and self.pressure:
            self._evict_one(None)
            self.pressure = self._current_pressure()

    def _current_pressure(self) -> Pressure:
        if self.n_bytes > self._max_bytes or self.n_events > self._max_events:
            return Pressure.FULL
        is_tight = self.n_bytes > self._tight_bytes or self.n_events > self._tight_events
        return Pressure.TIGHT if is_tight else Pressure.NONE

    def _evict_one(self, caller: str | None) -> None:
        response = self._shares.excess(caller)
        owner, evict = self._kept.pop(response)
        self._shares.drop(owner, response)
        evict()
