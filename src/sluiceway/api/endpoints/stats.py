"""The account of the whole server, for `/stats`: what every process holds, and every rule that is broken."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from sluiceway.api.responses.hub import Hub
from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.obs.metrics import Metrics
from sluiceway.types import EngineStats

AUDIT_TIMEOUT_S = 2.0


async def ask_for_audit(hub: Hub, timeout_s: float = AUDIT_TIMEOUT_S) -> AuditReport | None:
    """The report of tokenizer and engine; None if they do not answer in time, or are known not to be there."""
    if not hub.is_served:
        return None
    answered: asyncio.Future[AuditReport] = asyncio.get_running_loop().create_future()
    try:
        query_id = hub.audits.ask(lambda report: None if answered.done() else answered.set_result(report))
    except PeerGone:
        return None
    try:
        async with asyncio.timeout(timeout_s):
            return await answered
    except TimeoutError:
        return None
    finally:
        hub.audits.forget(query_id)


def account(hub: Hub, metrics: Metrics, report: AuditReport | None, processes: Mapping[str, int]) -> dict[str, Any]:
    """The body of `/stats`. Without a report the engine's part is its last snapshot, and the whole is marked stale."""
    engine = report.engine if report is not None else metrics.engine
    violations = [*hub.violations()]
    if engine is not None:
        violations += engine_violations(engine)
    if report is not None:
        violations += report.violations
    return {
        "clean": not violations,
        "stale": report is None,
        "violations": violations,
        "engine": None if engine is None else msgspec.to_builtins(engine),
        "live": [] if report is None else msgspec.to_builtins(report.live),
        "tokenizer": None
        if report is None
        else {"encoding": report.tokenizer_encoding, "decoding": report.tokenizer_decoding},
        "api": hub.account(),
        "streams": {**dataclasses.asdict(hub.streams.census()), "actions": dict(metrics.stream_actions)},
        "tokens": {
            "generated": metrics.generated_tokens.total,
            "delivered": metrics.delivered_tokens,
            "wasted": metrics.wasted_tokens,
            "draft": metrics.draft_tokens.total,
            "accepted_draft": metrics.accepted_draft_tokens.total,
        },
        "finished": {reason.value: count for reason, count in metrics.finished.items()},
        "rejected": dict(metrics.rejected),
        "processes": dict(processes),
    }


def engine_violations(stats: EngineStats) -> list[str]:
    """Broken rules that a snapshot shows by itself."""
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
