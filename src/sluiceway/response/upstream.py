"""The sequences of one response that live upstream, and how many of them have yet to be admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluiceway.errors import InvariantError
from sluiceway.response.lifecycle import CancelUpstream, Effect
from sluiceway.types import FinishReason, Rid


class Upstream:
    """True while one lives. Changed only by its stream."""

    __slots__ = ("_live", "_unaccepted")

    def __init__(self, rids: Iterable[Rid]) -> None:
        self._live = dict.fromkeys(rids)
        self._unaccepted = len(self._live)

    def __bool__(self) -> bool:
        return bool(self._live)

    def __iter__(self) -> Iterator[Rid]:
        return iter(self._live)

    @property
    def is_accepted(self) -> bool:
        """Whether every sequence was admitted."""
        return self._unaccepted == 0

    def accepted(self) -> None:
        """One more was admitted."""
        self._unaccepted -= 1

    def has_but(self, rid: Rid) -> bool:
        """Whether another one than this lives."""
        return not self._live.keys() <= {rid}

    def settle(self, rid: Rid) -> None:
        """It has ended. Raises `InvariantError` for one that does not live."""
        if rid not in self._live:
            raise InvariantError(f"sequence {rid} ended, but does not live in this response")
        del self._live[rid]

    def forget(self) -> None:
        """None of them is held upstream."""
        self._live.clear()

    def cancel(self, reason: FinishReason) -> tuple[Effect, ...]:
        """End all that live; none does from now on."""
        rids = tuple(self._live)
        self._live.clear()
        return (CancelUpstream(rids, reason),) if rids else ()
