"""Time is charged to the part that was entered last."""

from __future__ import annotations

import msgspec

from sluiceway.engine.parts import Part, Parts
from sluiceway.types import EngineStats


class Watch:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_each_part_gets_the_time_until_the_next_is_entered() -> None:
    """The part that goes on is not in the totals yet."""
    watch = Watch()
    parts = Parts(watch)
    for now_s, part in ((1.0, Part.PLAN), (1.5, Part.MODEL), (4.5, Part.COMMIT), (5.0, Part.PUBLISH), (7.0, Part.PLAN)):
        watch.now_s = now_s
        assert parts.enter(part) == now_s
    watch.now_s = 100.0
    assert parts.totals() == {"plan_s_total": 0.5, "model_s_total": 3.0, "commit_s_total": 0.5, "publish_s_total": 2.0}


def test_nobody_is_charged_for_rest() -> None:
    """Waiting for work is not work."""
    watch = Watch()
    parts = Parts(watch)
    parts.enter(Part.PUBLISH)
    watch.now_s = 1.0
    parts.rest()
    watch.now_s = 50.0
    parts.enter(Part.PLAN)
    watch.now_s = 52.0
    parts.rest()
    assert parts.totals() == {"plan_s_total": 2.0, "model_s_total": 0.0, "commit_s_total": 0.0, "publish_s_total": 1.0}


def test_totals_are_fields_of_the_snapshot() -> None:
    """A new part needs a field."""
    names = {field.name for field in msgspec.structs.fields(EngineStats)}
    assert Parts(Watch()).totals().keys() <= names
