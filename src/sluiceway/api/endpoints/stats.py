"""The body of `/stats`: what every process holds, and every rule that is broken."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.obs.metrics import Metrics
from sluiceway.types import EngineStats

AUDIT_TIMEOUT_S = 2.0


async def ask_for_audit(dispatcher: Dispatcher, timeout_s: float = AUDIT_TIMEOUT_S) -> AuditReport | None:
    """Ask tokenizer and engine for their report; None if they are not there, or do not answer in time."""
    if not dispatcher.serves:
        return None
    answered: asyncio.Future[AuditReport] = asyncio.get_running_loop().create_future()
    try:
        query_id = dispatcher.audits.ask(lambda report: None if answered.done() else answered.set_result(report))
    except PeerGone:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            return await answered
    except TimeoutError:
        return None
    finally:
        dispatcher.audits.forget(query_id)


def account(
    dispatcher: Dispatcher, metrics: Metrics, report: AuditReport | None, processes: Mapping[str, int]
) -> dict[str, Any]:
    """The body of `/stats`. Without a report the part of the engine is its last snapshot, and `stale` is true."""
    engine = report.engine if report is not None else metrics.engine
    census = dispatcher.registry.census()  # also brings the counts of tokens up to date
    violations = [*dispatcher.violations()]
    if engine is not None:
        violations += engine_violations(engine)
    if report is not None:
        violations += report.violations
    counters = metrics.stats()
    return {
        "clean": not violations,
        "stale": report is None,
        "violations": violations,
        "engine": None if engine is None else msgspec.to_builtins(engine),
        "live": [] if report is None else msgspec.to_builtins(report.live),
        "tokenizer": None
        if report is None
        else {"encoding": report.tokenizer_encoding, "decoding": report.tokenizer_decoding},
        "api": dispatcher.account(),
        **counters,
        "streams": {**dataclasses.asdict(census), **counters["streams"]},
        "processes": dict(processes),
    }


def engine_violations(stats: EngineStats) -> list[str]:
    """The broken rules that a snapshot of the engine shows."""
    broken = []
    held = stats.blocks_free + stats.blocks_leased + stats.blocks_fenced + stats.blocks_cached
    if held != stats.blocks_total:
        broken.append(f"engine: {held} of {stats.blocks_total} blocks are accounted for")
    live = stats.running + stats.waiting + stats.paused
    if stats.accepted_total != stats.finished_total + live:
        broken.append(
            f"engine: {stats.accepted_total} sequences were accepted,"
            f" but {stats.finished_total} finished + {live} live are {stats.finished_total + live}"
        )
    if stats.released_total > stats.finished_total:
        broken.append(
            f"engine: {stats.released_total} sequences were released, but only {stats.finished_total} finished"
        )
    return broken
