"""Whose blocks may be taken for whom when the pool runs out."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.engine.scheduler.request import Request, State


class Victims:
    """The order of preemption: paused ones first (nobody reads them now), then running ones, always the youngest first.

    A running request gives way only to an older one. So the oldest can take from all others and always goes on, and no
    two requests take from each other in turn.
    """

    def __init__(self, seated: Iterable[Request]) -> None:
        self._stack = sorted(seated, key=lambda request: (request.state is State.PAUSED, request.arrival))

    def pop_for(self, needy: Request) -> Request | None:
        """The next to give way to `needy`; None if all that are left go before it."""
        if not self._stack:
            return None
        last = self._stack[-1]
        if last.state is State.RUNNING and last.arrival <= needy.arrival:
            return None
        return self._stack.pop()
