"""Where the engine's time goes: a stopwatch that is in one part of the round at a time, or at rest."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Part(str, enum.Enum):
    """A part of a round. The values are those of the metric's label."""

    PLAN = "plan"
    """Carrying out what arrived, and choosing the rows."""
    MODEL = "model"
    """Computing them: the model and the choice of tokens."""
    COMMIT = "commit"
    PUBLISH = "publish"
    """Saying what there is to say, up to the beginning of the next round."""


class Parts:
    """Charges the time between two calls to the part that was entered by the first. Costs one clock reading a call."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._part: Part | None = None
        self._since_s = 0.0
        self._totals_s = dict.fromkeys(Part, 0.0)

    def enter(self, part: Part) -> float:
        """The time now: the part before ends, this one begins."""
        return self._switch(part)

    def rest(self) -> None:
        """Time that passes from now on is nobody's."""
        self._switch(None)

    def totals(self) -> dict[str, float]:
        """Seconds so far, as the fields of `EngineStats`; without the part that goes on."""
        return {f"{part.value}_s_total": total_s for part, total_s in self._totals_s.items()}

    def _switch(self, part: Part | None) -> float:
        now_s = self._now_s()
        if self._part is not None:
            self._totals_s[self._part] += now_s - self._since_s
        self._part, self._since_s = part, now_s
        return now_s
