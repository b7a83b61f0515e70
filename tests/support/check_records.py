"""A score card of questions that were never asked."""

from __future__ import annotations

import msgspec

from sluiceway_lab.check.card import CheckRecord, answered, run_of
from sluiceway_lab.check.question import Finding, Question
from sluiceway_lab.load.record import Record
from support.records import record


def check_record(pairs: list[tuple[Question, Finding]]) -> CheckRecord:
    runs = [run_of("s", question, found) for question, found in pairs]
    made: Record = record(*runs, experiment="check", floor=None, weights=None)
    fields = {name: getattr(made, name) for name in made.__struct_fields__}
    return msgspec.convert(
        msgspec.to_builtins(fields) | {"findings": [msgspec.to_builtins(answered(*pair)) for pair in pairs]},
        CheckRecord,
    )
