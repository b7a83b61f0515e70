"""Time is charged to the part that was entered last."""

from __future__ import annotations

import msgspec

from sluiceway.engine.step_timer import StepPart, StepTimer
from sluiceway.types import EngineStats


class ProgressReporter:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_each_part_gets_the_time_until_the_next_is_entered() -> None:
    """The part that goes on is not in the totals yet."""
    watch = ProgressReporter()
    parts = StepTimer(watch)
    for now_s, part in (
        (1.0, StepPart.PLAN),
        (1.5, StepPart.MODEL),
        (4.5, StepPart.COMMIT),
        (5.0, StepPart.PUBLISH),
        (7.0, StepPart.PLAN),
    ):
        watch.now_s = now_s
        assert parts.enter(part) == now_s
    watch.now_s = 100.0
    assert parts.totals() == {"plan_s_total": 0.5, "model_s_total": 3.0, "commit_s_total": 0.5, "publish_s_total": 2.0}


def test_nobody_is_charged_for_rest() -> None:
    """Waiting for work is not work."""
    watch = ProgressReporter()
    parts = StepTimer(watch)
    parts.enter(StepPart.PUBLISH)
    watch.now_s = 1.0
    parts.enter(None)
    watch.now_s = 50.0
    parts.enter(StepPart.PLAN)
    watch.now_s = 52.0
    parts.enter(None)
    assert parts.totals() == {"plan_s_total": 2.0, "model_s_total": 0.0, "commit_s_total": 0.0, "publish_s_total": 1.0}


def test_totals_are_fields_of_the_snapshot() -> None:
    """A new part needs a field."""
    names = {field.name for field in msgspec.structs.fields(EngineStats)}
    assert StepTimer(ProgressReporter()).totals().keys() <= names
