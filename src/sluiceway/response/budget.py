"""What all streams of a process hold together, in bytes and in events: known at any time, and bounded.

The bound holds for all that is above the low-water mark of its reader, since nobody pays for others who holds no more
than that: streams together hold at most the bound and one low-water mark each. What follows from pressure is decided
by each stream's policy (`policy.decide`).

Before there is any pressure, the budget evicts responses that are only *kept*: they have ended, and no client reads
them. It takes the oldest one of the caller that keeps the most, so a caller that keeps more than others takes from
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
"""The part of the bound from which on there is pressure: what is on its way when a request is paused finds room."""

MUCH_BYTES = 1024 * 1024
"""More than that is not freed in one go: the system takes a millisecond for every 5 MiB."""


class Budget:
    """One per process. Every stream says what it takes and what it gives back."""

    __slots__ = (
        "_kept",
        "_max_bytes",
        "_max_events",
        "_max_kept",
        "_rubble",
        "_shares",
        "_tight_bytes",
        "_tight_events",
        "n_bytes",
        "n_events",
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
        self._rubble: deque[list[Piece]] = deque()
        """Released, but not freed yet."""

    @property
    def max_answer_bytes(self) -> int:
        """What one whole answer may have: more would put all others under pressure by itself."""
        return int(self._tight_bytes)

    @property
    def pressure(self) -> Pressure:
        """How near the bound is."""
        if not self._is_tight:
            return Pressure.NONE
        is_full = self.n_bytes > self._max_bytes or self.n_events > self._max_events
        return Pressure.FULL if is_full else Pressure.TIGHT

    def hold(self, n_bytes: int, n_events: int = 1) -> None:
        """One more event is held, or more bytes of an answer that is gathered."""
        self.n_bytes += n_bytes
        self.n_events += n_events
        while self._kept and self._is_tight:
            self._let_go(None)

    def keep(self, response: Hashable, give_way: Callable[[], None], caller: str = "", n_bytes: int = 0) -> None:
        """It is over, and nobody reads it: `give_way` releases what it holds. Idle for one that is kept already."""
        if response in self._kept:
            return
        self._kept[response] = (caller, give_way)
        # In units of what each has where all are kept, so that a few bytes more are no reason to lose to newcomers.
        unit_bytes = max(1, self._max_bytes // self._max_kept)
        self._shares.add(caller, response, 1 + n_bytes // unit_bytes)
        if len(self._kept) > self._max_kept:
            self._let_go(caller)

    def reclaim(self, response: Hashable) -> None:
        """Somebody reads it, or it has let go by itself. Idle for one that is not kept."""
        caller, _ = self._kept.pop(response, ("", None))
        self._shares.drop(caller, response)

    @property
    def has_rubble(self) -> bool:
        """Whether something released is still to be freed."""
        return bool(self._rubble)

    def free_later(self, pieces: list[Piece]) -> None:
        """These were released, and nobody uses them any more. Where they are many `free_some` frees them bit by bit."""
        if sum(map(len, pieces)) > MUCH_BYTES:
            self._rubble.append(pieces)

    def free_some(self, max_bytes: int) -> int:
        """Free about so much of what was released. Returns how many bytes that is."""
        n_bytes = 0
        while self._rubble and n_bytes < max_bytes:
            pieces = self._rubble[0]
            while pieces and n_bytes < max_bytes:
                n_bytes += len(pieces.pop())
            if not pieces:
                self._rubble.popleft()
        return n_bytes

    def release(self, n_bytes: int, n_events: int) -> None:
        """Raises `InvariantError` for more than is held."""
        if n_bytes > self.n_bytes or n_events > self.n_events:
            raise InvariantError(f"{n_bytes} bytes of {n_events} events are released, but less is held")
        self.n_bytes -= n_bytes
        self.n_events -= n_events

    @property
    def _is_tight(self) -> bool:
        return self.n_bytes > self._tight_bytes or self.n_events > self._tight_events

    def _let_go(self, caller: str | None) -> None:
        response = self._shares.excess(caller)
        owner, give_way = self._kept.pop(response)
        self._shares.drop(owner, response)
        give_way()
