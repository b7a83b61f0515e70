"""The score card: the answers to all questions, for a person and as a record of the lab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluiceway_lab.check.question import Finding, Question, Verdict
from sluiceway_lab.load.record import Record, Run

_STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.UNKNOWN: "dim"}


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A question and its finding; the figures are those of the run of the same scenario."""

    question: str
    asks: str
    verdict: Verdict
    sentence: str


class CheckRecord(Record, frozen=True, kw_only=True):
    """A record of the lab with one run for each question, and what was found."""

    findings: list[Answered]

    @property
    def has_failed(self) -> bool:
        return any(found.verdict is Verdict.FAIL for found in self.findings)


def answered(question: Question, found: Finding) -> Answered:
    return Answered(question=question.name, asks=question.asks, verdict=found.verdict, sentence=found.sentence)


def run_of(subject: str, question: Question, found: Finding) -> Run:
    errors = [found.sentence] if found.verdict is Verdict.FAIL else []
    return Run(subject=subject, scenario=question.name, streams=0, repeat=0, figures=found.figures, errors=errors)


def show(record: CheckRecord, console: Console) -> None:
    (subject,) = record.subjects
    title = f"{subject.name} {subject.version or ''} at {subject.url}, {subject.model}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("question", "verdict", "what was seen"):
        table.add_column(heading)
    for found in record.findings:
        # What a server said is no markup.
        verdict = Text(found.verdict, style=_STYLES[found.verdict])
        table.add_row(found.question, verdict, Text(found.sentence))
    console.print(table)
    console.print(tally(record.findings))


def tally(findings: Sequence[Answered]) -> str:
    counted = Counter(found.verdict for found in findings)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict])
