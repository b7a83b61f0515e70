"""From an address to a score card: meets the server, asks one question after another, writes down the findings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import uvloop

from sluiceway_lab.check.card import CheckRecord, answered, run_of
from sluiceway_lab.check.peer import CheckConfig, Peer, fitted, paced
from sluiceway_lab.check.question import Finding, Question, Verdict, unknown
from sluiceway_lab.load.calls import Target
from sluiceway_lab.load.machine import describe_host, load, sources, versions
from sluiceway_lab.load.record import summarize
from sluiceway_lab.load.replies import LoadError
from sluiceway_lab.load.subject import meet

TOTAL_S = 1800.0

Say = Callable[[str], None]
"""Shows a line of progress."""


@dataclass(frozen=True, kw_only=True)
class CheckSession:
    """One check of a server that runs. `pid` is its first process, if that is on this machine.

    `drain_pid` is the process to which the last question sends SIGTERM. `command` is how a person would repeat it.
    All questions together take at most `total_s`.
    """

    target: Target
    questions: Sequence[Question]
    config: CheckConfig = CheckConfig()
    model: str | None = None
    pid: int | None = None
    drain_pid: int | None = None
    command: Sequence[str] = ()
    total_s: float = TOTAL_S

    def run(self, say: Say) -> CheckRecord:
        """Takes minutes; each question is announced, then answered.

        Raises `LoadError` for a server that answers nothing from the first.
        """
        started_at, started_s, load_before = datetime.now(UTC), time.perf_counter(), load()
        peer, findings = uvloop.run(self._ask_all(say))
        git_sha, is_dirty = sources()
        pairs = list(zip(self.questions, findings, strict=True))
        runs = [run_of(peer.subject.name, question, found) for question, found in pairs]
        return CheckRecord(
            experiment="check",
            git_sha=git_sha,
            is_dirty=is_dirty,
            command=list(self.command),
            config=msgspec.to_builtins(peer.config),
            host=describe_host(load_before),
            versions=versions(),
            seed=self.config.seed,
            started_at=started_at.isoformat(timespec="seconds"),
            duration_s=round(time.perf_counter() - started_s, 3),
            floor=None,
            weights=None,
            subjects=[peer.subject.facts()],
            runs=runs,
            summary=summarize(runs),
            ratios=[],
            findings=[answered(question, found) for question, found in pairs],
        )

    async def _ask_all(self, say: Say) -> tuple[Peer, list[Finding]]:
        ends_s = time.perf_counter() + self.total_s
        peer = await self._meet()
        findings = []
        for place, question in enumerate(self.questions, 1):
            say(f"{place}/{len(self.questions)} {question.name}: {question.asks}")
            started_s = time.perf_counter()
            found = await finding(question, peer, ends_s - started_s)
            say(f"    {found.verdict}, {found.sentence} ({time.perf_counter() - started_s:.0f} s)")
            findings.append(found)
        return peer, findings

    async def _meet(self) -> Peer:
        """Raises `LoadError` for a server that answers nothing, or not in the time of a question."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                subject = await meet(self.target, model=self.model, pid=self.pid)
                pace = await paced(subject, self.config)
        except TimeoutError:
            raise LoadError(f"a few small requests took over {self.config.timeout_s:g} s (--timeout)") from None
        return Peer(subject=subject, pace=pace, config=fitted(self.config, pace), drain_pid=self.drain_pid)


async def finding(question: Question, peer: Peer, left_s: float) -> Finding:
    """A server that breaks off, or that leaves a request without an end, has failed; one may also just be slow.

    `left_s` is what is left of the time for all questions.
    """
    if left_s <= 0:
        return unknown("not asked: the time for all questions is over (--total)")
    limit_s = peer.config.timeout_s
    try:
        async with asyncio.timeout(min(limit_s, left_s)):
            return await question.ask(peer)
    except LoadError as fault:
        return Finding(Verdict.FAIL, str(fault))
    except TimeoutError:
        if left_s < limit_s:
            return unknown("it was not over when the time for all questions was (--total)")
        return unknown(f"it was not over after {limit_s:g} s: the server is too slow for that (--timeout)")
