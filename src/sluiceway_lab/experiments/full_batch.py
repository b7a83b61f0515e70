"""Fills the batch, stops half of its readers, and measures how long new requests wait for a slot."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Sequence
from typing import Any

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.experiments.readers import WHOLE, Habit, Reading, read, stalled
from sluiceway_lab.load.client import dial, until
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, total
from sluiceway_lab.load.workload import prompts

_SLOTS, _STALLED, _FAST = 8, 4, 4
_PAD_BYTES = 16 * 1024
_ENDLESS, _SHORT = 1500, 16
_PARK_S, _SMOKE_PARK_S = 2.0, 0.5
_WAIT_S, _SMOKE_WAIT_S = 6.0, 1.5
_POLL_S = 0.02
_SLACK = 1.25
"""A factor on `park_after_s`: the server checks four times a second, and the first token takes a step or two."""
_PATIENCE_S = 60.0
_DEGREES = "pause-park-drop"
_LIMIT_BYTES = 1 << 20
"""The default limit of a stream under `pause-park-drop`, see docs/slow-clients.md."""
_FIRST, _SERVED, _PAUSED, _HELD = "fast_first_token_s", "fast_served", "slots_of_paused", "held_bytes"


async def _run(lab: Lab) -> list[Verdict]:
    park_s = lab.pick(_PARK_S, _SMOKE_PARK_S)
    policies: dict[str, Any] = {
        "pause": "pause",
        _DEGREES: {"policy": _DEGREES, "park_after_s": park_s, "drop_after_s": 30 * park_s},
    }
    async with lab.server("--max-running", str(_SLOTS), pad_bytes=_PAD_BYTES) as server:
        for name, policy in policies.items():
            figures = await _full(lab, server, policy)
            lab.note(server.name, name, figures, streams=_STALLED)
            await until(server.is_idle, "an idle server", limit_s=_PATIENCE_S, pause_s=_POLL_S)
    return verdicts(lab, park_s)


async def _full(lab: Lab, server: TargetServer, policy: Any) -> dict[str, float]:
    """Fill the batch with four readers that stop and four that read on. Then send four short requests."""
    wait_s = lab.pick(_WAIT_S, _SMOKE_WAIT_S)
    texts = prompts(lab.seed, "full-batch", _SLOTS + _FAST)
    residents = [server.request(text, _ENDLESS, sluiceway={"slow_client": policy}) for text in texts[:_SLOTS]]
    async with contextlib.AsyncExitStack() as stack:
        for request in residents[:_STALLED]:
            await stack.enter_async_context(stalled(server.target, request))
        for request in residents[_STALLED:]:
            await stack.enter_async_context(dial(server.target, request))
        n_paused = await _paused(server)
        short = [server.request(text, _SHORT) for text in texts[_SLOTS:]]
        fast = [asyncio.create_task(read(server.target, request, Habit(for_s=wait_s))) for request in short]
        held_bytes = await _most_held(server, fast)
        return figures_of([one.result() for one in fast], wait_s) | {_PAUSED: n_paused, _HELD: held_bytes}


async def _paused(server: TargetServer) -> int:
    """Wait until all stopped streams are paused, and return how many are. Raises `LoadError`."""

    async def look() -> int:
        n_paused = int((await server.json("/stats"))["engine"]["paused"])
        return n_paused if n_paused >= _STALLED else 0

    return await until(look, f"{_STALLED} paused sequences", limit_s=_PATIENCE_S, pause_s=_POLL_S)


async def _most_held(server: TargetServer, tasks: Sequence[asyncio.Task[Reading]]) -> float:
    """Return the most bytes that the server held for readers until these tasks were done."""
    most = 0.0
    while not all(task.done() for task in tasks):
        most = max(most, total(await server.samples(), "sluiceway_stream_backlog_bytes"))
        await asyncio.sleep(_POLL_S)
    return most


def figures_of(readings: Sequence[Reading], wait_s: float) -> dict[str, float]:
    """A request that gives up without a token counts with its whole waiting time."""
    waits_s = [reading.token_s[0] - reading.started_s if reading.token_s else wait_s for reading in readings]
    return {
        _FIRST: statistics.median(waits_s),
        "fast_first_token_max_s": max(waits_s),
        _SERVED: sum(reading.end == WHOLE for reading in readings),
    }


def verdicts(lab: Lab, park_s: float) -> list[Verdict]:
    by_policy = {run.scenario: run.figures for run in lab.runs}
    pause, degrees = by_policy["pause"], by_policy[_DEGREES]
    cap_bytes = _SLOTS * _LIMIT_BYTES
    return [
        Verdict(
            "paused streams keep their slots: with pause alone no other request gets one",
            pause[_SERVED] == 0,
            f"{pause[_SERVED]:.0f} of {_FAST} fast requests were served while {pause[_PAUSED]:.0f} of {_SLOTS} slots "
            "were held by streams that do not move",
        ),
        Verdict(
            "with pause-park-drop all of them are served",
            degrees[_SERVED] == _FAST,
            f"{degrees[_SERVED]:.0f} of {_FAST} fast requests were served",
        ),
        lab.timed(
            "they wait at most until the stopped streams are parked",
            degrees["fast_first_token_max_s"] <= park_s * _SLACK,
            f"first tokens after {degrees[_FIRST]:.2f} s, at most {degrees['fast_first_token_max_s']:.2f} s, where "
            f"parking is after {park_s:g} s",
        ),
        Verdict(
            "what is held for readers stays below its limit",
            degrees[_HELD] <= cap_bytes,
            f"at most {degrees[_HELD] / 1e3:.0f} kB, of {cap_bytes / 1e3:.0f}",
        ),
    ]


EXPERIMENT = Experiment(
    name="full-batch",
    question="How many slots do paused streams hold when the batch is full, and what do fast requests pay?",
    run=_run,
    columns=(
        Column(_PAUSED, "paused hold slots", digits=0),
        Column(_FIRST, "fast: first token s, median", digits=2),
        Column("fast_first_token_max_s", "worst", digits=2),
        Column(_SERVED, "served", digits=0),
        Column(_HELD, "held kB", 1e-3, 0),
    ),
    drawn=(_FIRST, _HELD),
    not_shown=("how long fast requests wait with pause alone: they give up, since the stopped ones stay for minutes",),
)
