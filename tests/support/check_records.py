"""Makes the record of a check from given findings, without asking a server."""

from __future__ import annotations

from sluiceway_lab.check.question import Finding, Question
from sluiceway_lab.check.session import answered, run_of
from sluiceway_lab.load.record import Record
from support.records import record


def check_record(pairs: list[tuple[Question, Finding]]) -> Record:
    runs = [run_of("s", question, found) for question, found in pairs]
    findings = [answered(question, found) for question, found in pairs]
    return record(*runs, experiment="check", floor=None, weights=None, findings=findings)
