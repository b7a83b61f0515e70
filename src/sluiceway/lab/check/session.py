"""From an address to a score card: meets the server, asks one question after another, writes down the findings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import uvloop

from sluiceway.lab.check.card import CheckRecord, answered, run_of
from sluiceway.lab.check.peer import CheckConfig, Peer, fitted, paced
from sluiceway.lab.check.question import Finding, Question, Verdict, unknown
from sluiceway.lab.load.calls import Target
from sluiceway.lab.load.machine import describe_host, load, sources, versions
from sluiceway.lab.load.record import summarize
from sluiceway.lab.load.replies import LoadError
from sluiceway.lab.load.subject import meet

Say = Callable[[str], None]
"""Shows a line of progress."""


@dataclass(frozen=True, kw_only=True)
class CheckSession:
    """One check of a server that runs. `pid` is its first process, if that is on this machine.

    `drain_pid` is the process to which the last question sends SIGTERM. `command` is how a person would repeat it.
    """

    target: Target
    questions: Sequence[Question]
    config: CheckConfig = CheckConfig()
    model: str | None = None
    pid: int | None = None
    drain_pid: int | None = None
    command: Sequence[str] = ()

    def run(self, say: Say) -> CheckRecord:
        """Takes minutes. Raises `LoadError` for a server that answers nothing from the first."""
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
        subject = await meet(self.target, model=self.model, pid=self.pid)
        pace = await paced(subject, self.config)
        peer = Peer(subject=subject, pace=pace, config=fitted(self.config, pace), drain_pid=self.drain_pid)
        findings = []
        for question in self.questions:
            found = await finding(question, peer)
            say(f"{question.name}: {found.verdict}, {found.sentence}")
            findings.append(found)
        return peer, findings


async def finding(question: Question, peer: Peer) -> Finding:
    """A server that breaks off, or that leaves a request without an end, has failed; one may also just be slow."""
    limit_s = peer.config.timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await question.ask(peer)
    except LoadError as fault:
        return Finding(Verdict.FAIL, str(fault))
    except TimeoutError:
        return unknown(f"it was not over after {limit_s:g} s: the server is too slow for that (--timeout)")
