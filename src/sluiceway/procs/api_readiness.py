"""Whether the server can take a request now: which processes serve, and whether it is leaving."""

from __future__ import annotations

from sluiceway.errors import Refusal
from sluiceway.messages.to_child import Role
from sluiceway.procs.api_refusals import DRAINING, ENGINE_UNAVAILABLE, LOADING

_NEEDED = frozenset({Role.TOKENIZER, Role.ENGINE})


class Readiness:
    """What the supervisor said last. A process serves when it is up and does not hang."""

    def __init__(self) -> None:
        self._up: set[Role] = set()
        self._hung: set[Role] = set()
        self._has_served = False
        self._is_draining = False

    @property
    def refusal(self) -> Refusal | None:
        """Why nothing new can be served now; None if it can."""
        if self._is_draining:
            return DRAINING
        if self.serves:
            return None
        return ENGINE_UNAVAILABLE if self._has_served else LOADING

    @property
    def serves(self) -> bool:
        """Whether every process that a request passes through serves."""
        return self._up >= _NEEDED and not self._hung

    def went_up(self, role: Role) -> None:
        self._up.add(role)
        self._hung.discard(role)
        self._has_served = self._has_served or self.serves

    def hangs(self, role: Role) -> None:
        self._hung.add(role)

    def died(self, role: Role) -> None:
        self._up.discard(role)
        self._hung.discard(role)

    def drain(self) -> None:
        """For good."""
        self._is_draining = True
