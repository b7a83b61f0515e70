"""Whether the server can take a request now: which processes serve, and whether it is leaving."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_child import Role
from sluiceway.refusals import DRAINING, LOADING, unavailable

_NEEDED = (Role.TOKENIZER, Role.ENGINE)


class Readiness:
    """What the supervisor said last, and what the pipes show.

    The supervisor's word comes by a way of its own and may be first: a request that is sent then finds no pipe yet.
    """

    def __init__(self, has_peer: Callable[[], bool]) -> None:
        """`has_peer`: whether the pipe to the tokenizer is connected now."""
        self._has_peer = has_peer
        self._up: set[Role] = set()
        self._hung: set[Role] = set()
        self._is_engine_heard = False
        self._has_served = False
        self._is_draining = False

    @property
    def refusal(self) -> Refusal | None:
        """Why nothing new can be served now; None if it can."""
        if self._is_draining:
            return DRAINING
        if self.serves:
            return None
        return self._missing if self._has_served else LOADING

    @property
    def serves(self) -> bool:
        """Whether every process that a request passes through serves, and can be reached."""
        return self._should_serve and self._has_peer()

    @property
    def _missing(self) -> Refusal:
        """Names the process that cannot serve, and what is the matter with it."""
        for role in _NEEDED:
            if role not in self._up:
                return unavailable(role.value)
            if role in self._hung:
                return unavailable(role.value, "does not respond")
        role = Role.ENGINE if self._has_peer() else Role.TOKENIZER
        return unavailable(role.value, "is not connected")

    @property
    def _should_serve(self) -> bool:
        return self._up.issuperset(_NEEDED) and self._is_engine_heard and not self._hung

    def went_up(self, role: Role) -> None:
        self._up.add(role)
        self._hung.discard(role)
        self._has_served = self._has_served or self._should_serve

    def engine_heard(self) -> None:
        """The engine's first word came through the pipes."""
        self._is_engine_heard = True
        self._has_served = self._has_served or self._should_serve

    def hangs(self, role: Role) -> None:
        self._hung.add(role)

    def died(self, role: Role) -> None:
        self._up.discard(role)
        self._hung.discard(role)
        # The engine says who it is whenever it has a new way to this process: until then a request may find none.
        self._is_engine_heard = False

    def drain(self) -> None:
        """For good."""
        self._is_draining = True
