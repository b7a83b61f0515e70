"""Runs a check: meets the server, asks the questions one after another, makes the record, and prints the score card."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluiceway.errors import ConfigError
from sluiceway_lab.check import answers, readers, requests
from sluiceway_lab.check.question import CheckConfig, CheckContext, Finding, Question, fitted, paced, unknown
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.machine import Measurement
from sluiceway_lab.load.record import Answered, Grade, Record, Run, Say
from sluiceway_lab.load.target_server import meet

QUESTIONS = (
    answers.OVERLAP,
    answers.ISOLATION,
    readers.HEADERS,
    readers.SILENCE,
    answers.TERMINAL,
    answers.CHARACTERS,
    answers.STOPS,
    requests.CONNECTIONS,
    requests.BAD_REQUESTS,
    readers.SLOW_READER,
    readers.FIN,
    readers.RST,
    readers.PLAIN,
    readers.WAITING,
    readers.WASTE,
    requests.OVERLOAD,
    requests.DRAIN,
)
"""All questions in the order in which they are asked. The harmless ones come first; the last one ends the server."""
TOTAL_S = 1800.0
_STYLES = {Grade.PASS: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red", Grade.UNKNOWN: "dim"}


def chosen(names: list[str]) -> list[Question]:
    """Return the questions of these names, or all. Raises `ConfigError` for an unknown name."""
    known = {question.name for question in QUESTIONS}
    for name in names:
        if name not in known:
            raise ConfigError("only", f"must be one of {', '.join(sorted(known))}, not {name!r}")
    return [question for question in QUESTIONS if not names or question.name in names]


@dataclass(frozen=True, kw_only=True)
class CheckSession:
    """One check of a running server.

    `pid` is the server's first process, if it runs on this machine. The last question sends SIGTERM to `drain_pid`.
    `command` is the command line that repeats the check. All questions together take at most `total_s`.
    """

    target: Target
    questions: Sequence[Question]
    config: CheckConfig = CheckConfig()
    model: str | None = None
    pid: int | None = None
    drain_pid: int | None = None
    command: Sequence[str] = ()
    total_s: float = TOTAL_S

    def run(self, say: Say) -> Record:
        """Take minutes, and report each question and its answer.

        Raises `LoadError` if the server does not answer at all.
        """
        measurement = Measurement.begin()
        context, findings = uvloop.run(self._ask_all(say))
        pairs = list(zip(self.questions, findings, strict=True))
        return measurement.record(
            "check",
            self.command,
            msgspec.to_builtins(context.config),
            [run_of(context.server.name, question, found) for question, found in pairs],
            seed=self.config.seed,
            servers=[context.server.facts()],
            findings=[answered(question, found) for question, found in pairs],
        )

    async def _ask_all(self, say: Say) -> tuple[CheckContext, list[Finding]]:
        ends_s = time.perf_counter() + self.total_s
        context = await self._meet()
        findings = []
        for place, question in enumerate(self.questions, 1):
            say(f"{place}/{len(self.questions)} {question.name}: {question.asks}")
            started_s = time.perf_counter()
            found = await finding(question, context, ends_s - started_s)
            say(f"    {found.grade}, {found.sentence} ({time.perf_counter() - started_s:.0f} s)")
            findings.append(found)
        return context, findings

    async def _meet(self) -> CheckContext:
        """Raises `LoadError` if the server does not answer, or takes longer than the limit of a question."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                server = await meet(self.target, model=self.model, pid=self.pid)
                pace = await paced(server, self.config)
        except TimeoutError:
            raise LoadError(f"a few small requests took over {self.config.timeout_s:g} s (--timeout)") from None
        return CheckContext(server=server, pace=pace, config=fitted(self.config, pace), drain_pid=self.drain_pid)


async def finding(question: Question, context: CheckContext, left_s: float) -> Finding:
    """Ask one question. A server that breaks off an answer, or never ends it, has failed.

    `left_s` is what is left of the time for all questions.
    """
    if left_s <= 0:
        return unknown("not asked: the time for all questions is over (--total)")
    limit_s = context.config.timeout_s
    try:
        async with asyncio.timeout(min(limit_s, left_s)):
            return await question.ask(context)
    except LoadError as fault:
        return Finding(Grade.FAIL, str(fault))
    except TimeoutError:
        if left_s < limit_s:
            return unknown("it had not ended when the time for all questions was over (--total)")
        return unknown(f"it had not ended after {limit_s:g} s: the server is too slow (--timeout)")


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
