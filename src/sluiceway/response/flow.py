"""Between the readers of one response and the engine: how its readers stand decides how its sequences run.

The engine is told changes only, so pauses and resumptions alternate. What is parked stays so until it is resumed: to
pause it would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sluiceway.response.audience import Audience
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import Effect, EndReader, ParkUpstream, PauseUpstream, ResumeUpstream
from sluiceway.response.policy import Decision, Pressure
from sluiceway.response.replay import Replay
from sluiceway.response.terms import Terms
from sluiceway.types import FinishReason, Rid

_EFFECTS: Mapping[Decision, type[ResumeUpstream | PauseUpstream | ParkUpstream]] = MappingProxyType(
    {Decision.FLOW: ResumeUpstream, Decision.PAUSE: PauseUpstream, Decision.PARK: ParkUpstream}
)


class Flow:
    """See the module's docstring. It begins flowing. Changed only by its stream."""

    __slots__ = ("_audience", "_budget", "_held_since_s", "_replay", "_terms", "told")

    def __init__(self, terms: Terms, audience: Audience, replay: Replay, budget: Budget) -> None:
        self._terms = terms
        self._audience = audience
        self._replay = replay
        self._budget = budget
        self.told = Decision.FLOW
        """What the engine was told last."""
        self._held_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """Paused or parked."""
        return self.told is not Decision.FLOW

    @property
    def is_calm(self) -> bool:
        """Whether to judge the readers would tell nothing new."""
        return self._audience.is_calm(self._replay.end) and self._budget.pressure is Pressure.NONE

    def attended(self, rids: Iterable[Rid], now_s: float, *, may_return: bool) -> tuple[Decision, tuple[Effect, ...]]:
        """What the readers want for these sequences, and what follows. Whoever is too slow gets a last word alone.

        `DROP`: all of them are. What waits for them is passed over. Where the response goes on (`may_return`) each gets
        its last word; else it is the end of the response that all of them get.
        """
        end = self._replay.end
        mildest, slow = self._audience.judge(end, now_s, self._budget.pressure)
        self._audience.skip(slow, end, now_s)
        if mildest is Decision.DROP and not may_return:
            return mildest, ()
        self._audience.dismiss(slow)
        told = [EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in slow]
        if mildest is Decision.DROP:
            return mildest, tuple(told)
        return mildest, (*told, *self._turn(mildest, rids, now_s))

    def unattended(self, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        """Nobody reads. Once held, these sequences stay so: what waits does not get less."""
        if not self.is_held:
            wanted = Decision.PAUSE if self._is_ahead else Decision.FLOW
        else:
            after_s = self._terms.policy.park_after_s
            is_long = after_s is not None and now_s - self._held_since_s >= after_s
            wanted = Decision.PARK if is_long else self.told
        return self._turn(wanted, rids, now_s)

    @property
    def _is_ahead(self) -> bool:
        """Whether more waits for a reader that is not there than shall."""
        retention = self._terms.retention
        has_room = retention is not None and self._replay.n_waiting < retention.ahead_tokens
        return not has_room or self._replay.is_full or self._budget.pressure is not Pressure.NONE

    def _turn(self, wanted: Decision, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        """Tell the engine, where that is news to it."""
        if wanted is self.told or (wanted is Decision.PAUSE and self.is_held):
            return ()
        if not self.is_held:
            self._held_since_s = now_s
        self.told = wanted
        return (_EFFECTS[wanted](tuple(rids)),)
