"""From the readers of one response to the engine: slow readers pause its sequences, or park them.

The engine gets changes only. Parked sequences stay parked until they run again: pausing them would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.response.backlog import Backlog
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import Effect, EndReader
from sluiceway.response.policy import Decision, Pressure
from sluiceway.response.readers import Readers
from sluiceway.response.terms import StreamTerms
from sluiceway.types import FinishReason, Flow, Rid

_FLOW: Mapping[Decision, Flow] = MappingProxyType(
    {Decision.RUN: Flow.RUN, Decision.PAUSE: Flow.PAUSE, Decision.PARK: Flow.PARK}
)


class Backpressure:
    """Decides whether the sequences of one response run, and remembers what the engine was told. They begin running."""

    __slots__ = ("_backlog", "_budget", "_current", "_held_since_s", "_readers", "_terms")

    def __init__(self, terms: StreamTerms, readers: Readers, backlog: Backlog, budget: Budget) -> None:
        self._terms = terms
        self._readers = readers
        self._backlog = backlog
        self._budget = budget
        self._current = Decision.RUN
        """The last decision that the engine got."""
        self._held_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """True while the sequences are paused or parked."""
        return self._current is not Decision.RUN

    def attended(self, rids: Iterable[Rid], now_s: float, *, may_return: bool) -> tuple[Decision, tuple[Effect, ...]]:
        """Decide for a response with readers. Each reader that is too slow is dismissed with a last event.

        The decision `DROP` means that every reader is too slow. What waits for them is skipped. If the response goes on
        without readers (`may_return`), each reader gets its last event; else all of them get the end of the response.
        """
        end = self._backlog.end
        mildest, slow = self._readers.judge(end, now_s, self._budget.pressure)
        if slow:
            self._readers.skip(slow, end, now_s)
            if mildest is Decision.DROP and not may_return:
                return mildest, ()
            self._readers.dismiss(slow)
        last_events = tuple(EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in slow)
        if mildest is Decision.DROP or mildest is self._current:
            return mildest, last_events
        return mildest, (*last_events, *self._change(mildest, rids, now_s))

    def detached(self, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        """Decide for a response without readers. Held sequences stay held, since the backlog does not shrink."""
        if not self.is_held:
            wanted = Decision.PAUSE if self._is_ahead else Decision.RUN
        else:
            after_s = self._terms.policy.park_after_s
            is_long = after_s is not None and now_s - self._held_since_s >= after_s
            wanted = Decision.PARK if is_long else self._current
        return self._change(wanted, rids, now_s)

    @property
    def _is_ahead(self) -> bool:
        """True when a detached stream has generated more than its limit."""
        retention = self._terms.retention
        has_room = retention is not None and self._backlog.n_waiting < retention.ahead_tokens
        return not has_room or self._backlog.is_full or self._budget.pressure is not Pressure.NONE

    def _change(self, wanted: Decision, rids: Iterable[Rid], now_s: float) -> tuple[Effect, ...]:
        if wanted is self._current or (wanted is Decision.PAUSE and self.is_held):
            return ()
        if not self.is_held:
            self._held_since_s = now_s
        self._current = wanted
        return (SetFlow(tuple(rids), _FLOW[wanted]),)
