"""Prints the answers to all questions of `check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluiceway_lab.check.question import Finding, Question
from sluiceway_lab.load.record import Answered, Grade, Record, Run

_STYLES = {Grade.PASS: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red", Grade.UNKNOWN: "dim"}


def answered(question: Question, found: Finding) -> Answered:
    return Answered(question=question.name, asks=question.asks, grade=found.grade, sentence=found.sentence)


def run_of(server: str, question: Question, found: Finding) -> Run:
    errors = [found.sentence] if found.grade is Grade.FAIL else []
    return Run(server=server, scenario=question.name, streams=0, repeat=0, figures=found.figures, errors=errors)


def show(record: Record, console: Console) -> None:
    (server,) = record.servers
    title = f"{server.name} {server.version or ''} at {server.url}, {server.model}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("question", "verdict", "what was seen"):
        table.add_column(heading)
    for found in record.findings:
        # A sentence may quote the server, so it is not parsed as markup.
        grade = Text(found.grade, style=_STYLES[found.grade])
        table.add_row(found.question, grade, Text(found.sentence))
    console.print(table)
    console.print(tally(record.findings))


def tally(findings: Sequence[Answered]) -> str:
    counted = Counter(found.grade for found in findings)
    return ", ".join(f"{counted[grade]} {grade}" for grade in Grade if counted[grade])
