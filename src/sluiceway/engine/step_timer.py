"""Measures where the time of the engine goes, by part of a round."""

from __future__ import annotations

import enum
from collections.abc import Callable


class StepPart(str, enum.Enum):
    """A part of a round of the engine. The values are label values of the metric."""

    PLAN = "plan"
    """Apply what arrived, and choose the rows."""
    MODEL = "model"
    """Compute the rows: the model, and sampling."""
    COMMIT = "commit"
    PUBLISH = "publish"
    """Make the messages, and everything until the next round begins."""


class StepTimer:
    """A stopwatch that is in one part of the round at a time, or at rest. Each switch reads the clock once."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._part: StepPart | None = None
        self._since_s = 0.0
        self._totals_s = dict.fromkeys(StepPart, 0.0)

    def enter(self, part: StepPart | None) -> float:
        """End the current part and begin this one; None: rest, which counts for no part. Returns the time now."""
        now_s = self._now_s()
        if self._part is not None:
            self._totals_s[self._part] += now_s - self._since_s
        self._part, self._since_s = part, now_s
        return now_s

    def totals(self) -> dict[str, float]:
        """Seconds per part so far, by the field names of `EngineStats`, without the part that is under way."""
        return {f"{part.value}_s_total": total_s for part, total_s in self._totals_s.items()}
