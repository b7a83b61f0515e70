"""What the engine was told last about the sequences of one response: to let them flow, to pause or to park them.

It is told changes only, so pauses and resumptions alternate. What is parked stays so until it is resumed: to pause it
would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sluiceway.stream.lifecycle import Effect, ParkUpstream, PauseUpstream, ResumeUpstream
from sluiceway.stream.policy import Decision
from sluiceway.types import Rid

_EFFECTS: Mapping[Decision, type[ResumeUpstream | PauseUpstream | ParkUpstream]] = MappingProxyType(
    {Decision.FLOW: ResumeUpstream, Decision.PAUSE: PauseUpstream, Decision.PARK: ParkUpstream}
)


class Flow:
    """See the module's docstring. It begins flowing."""

    __slots__ = ("_held_since_s", "told")

    def __init__(self) -> None:
        self.told = Decision.FLOW
        self._held_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """Paused or parked."""
        return self.told is not Decision.FLOW

    def unattended(self, is_ahead: bool, park_after_s: float | None, now_s: float) -> Decision:
        """What shall be while nobody reads. Once held it stays so: what waits does not get less."""
        if not self.is_held:
            return Decision.PAUSE if is_ahead else Decision.FLOW
        is_long = park_after_s is not None and now_s - self._held_since_s >= park_after_s
        return Decision.PARK if is_long else self.told

    def turn(self, wanted: Decision, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        """Tell the engine, where that is news to it."""
        if wanted is self.told or (wanted is Decision.PAUSE and self.is_held):
            return ()
        if not self.is_held:
            self._held_since_s = now_s
        self.told = wanted
        return (_EFFECTS[wanted](tuple(rids)),)
