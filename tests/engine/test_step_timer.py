"""The step timer adds time to the part of the step that was entered last."""

from __future__ import annotations

import msgspec

from sluiceway.engine.step_timer import StepPart, StepTimer
from sluiceway.types import EngineStats


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_each_part_gets_the_time_until_the_next_is_entered() -> None:
    """The current part is not in the totals yet."""
    clock = ManualClock()
    timer = StepTimer(clock)
    for now_s, part in (
        (1.0, StepPart.PLAN),
        (1.5, StepPart.MODEL),
        (4.5, StepPart.COMMIT),
        (5.0, StepPart.PUBLISH),
        (7.0, StepPart.PLAN),
    ):
        clock.now_s = now_s
        assert timer.enter(part) == now_s
    clock.now_s = 100.0
    assert timer.totals() == {"plan_s_total": 0.5, "model_s_total": 3.0, "commit_s_total": 0.5, "publish_s_total": 2.0}


def test_idle_time_counts_for_no_part() -> None:
    clock = ManualClock()
    timer = StepTimer(clock)
    timer.enter(StepPart.PUBLISH)
    clock.now_s = 1.0
    timer.enter(None)
    clock.now_s = 50.0
    timer.enter(StepPart.PLAN)
    clock.now_s = 52.0
    timer.enter(None)
    assert timer.totals() == {"plan_s_total": 2.0, "model_s_total": 0.0, "commit_s_total": 0.0, "publish_s_total": 1.0}


def test_totals_are_fields_of_the_snapshot() -> None:
    """A new part of the step needs a field in `EngineStats`."""
    names = {field.name for field in msgspec.structs.fields(EngineStats)}
    assert StepTimer(ManualClock()).totals().keys() <= names
