"""Lets most of many streams be abandoned, and measures what remains held, and what was computed in vain."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.experiments.readers import LEFT, WHOLE, Habit, Reading, read
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Run, Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_SLOTS = 8
_CLIENTS, _STREAMS, _TOKENS = 48, 300, 64
_FAKE_STREAMS = 10_000
_SMOKE_CLIENTS, _SMOKE_STREAMS, _SMOKE_TOKENS = 12, 40, 24
_SLOW_S, _SMOKE_SLOW_S = 0.25, 0.02
_SETTLE_S = 10.0
_POLL_S = 0.05
_MOST_PER_READ = 1.1
_LEAVING = "leaving"
_WRITE_ONLY = "write-only"
_RESPONSES = ("starlette", _WRITE_ONLY)

Stats = dict[str, Any]


async def _run(lab: Lab) -> list[Verdict]:
    n_streams = lab.pick(_FAKE_STREAMS if lab.is_fake else _STREAMS, _SMOKE_STREAMS)
    await _left(lab, n_streams)
    if lab.is_own:
        n_compared = min(n_streams, _STREAMS)
        if n_compared < n_streams:
            await _left(lab, n_compared)
        for response in _RESPONSES:
            await _left(lab, n_compared, response)
    return verdicts(lab)


async def _left(lab: Lab, n_streams: int, response: str | None = None) -> None:
    """Run this many streams on one server, with another response class if a class is named."""
    habits = drawn_habits(random.Random(lab.seed), n_streams, lab.pick(_SLOW_S, _SMOKE_SLOW_S))
    flags = ("--max-running", str(_SLOTS)) if lab.is_own else ()
    async with lab.server(*flags, front=response) as server:
        before = await _settled(server)
        started_s = time.perf_counter()
        readings, errors = await _read_all(lab, server, habits)
        wall_s = time.perf_counter() - started_s
        after = await _settled(server)
    lab.note(
        server.name,
        _LEAVING if response is None else f"{_LEAVING}, {response}",
        {"wall_s": wall_s, **figures_of(readings, before, after)},
        streams=n_streams,
        errors=errors + after["violations"],
    )


def drawn_habits(drawing: random.Random, n: int, slow_s: float) -> list[Habit]:
    """Of 100 readers, 35 read to the end, 50 leave after 0 to 40 tokens, 15 are slow and leave after 3 or 10 reads."""
    habits = [Habit() for _ in range(round(0.35 * n))]
    habits += [
        Habit(sleep_s=slow_s, n_reads=drawing.choice((3, 10)), resets=drawing.random() < 0.5, is_narrow=True)
        for _ in range(round(0.15 * n))
    ]
    while len(habits) < n:
        habits.append(Habit(n_tokens=drawing.randint(0, 40), resets=drawing.random() < 0.5))
    drawing.shuffle(habits)
    return habits


async def _read_all(lab: Lab, server: TargetServer, habits: Sequence[Habit]) -> tuple[list[Reading], list[str]]:
    """Each client starts its next stream when one has ended."""
    n_tokens = _n_tokens(lab)
    waiting = iter(zip(habits, prompts(lab.seed, "leak", len(habits)), strict=True))
    readings: list[Reading] = []
    errors: list[str] = []

    async def client() -> None:
        for habit, prompt in waiting:
            try:
                readings.append(await read(server.target, server.request(prompt, n_tokens), habit))
            except LoadError as fault:
                errors.append(str(fault))

    await asyncio.gather(*(client() for _ in range(lab.pick(_CLIENTS, _SMOKE_CLIENTS))))
    return readings, errors + [f"an answer ended with {one.end}" for one in readings if one.end not in (WHOLE, LEFT)]


def _n_tokens(lab: Lab) -> int:
    return lab.pick(_TOKENS, _SMOKE_TOKENS)


async def _settled(server: TargetServer) -> Stats:
    """Return `/stats` when nothing lives, or after some seconds, with what still lives."""
    deadline_s = time.perf_counter() + _SETTLE_S
    while True:
        stats: Stats = await server.json("/stats")
        if "engine" not in stats:
            raise LoadError(f"{server.target.url}/stats is not that of Sluiceway")
        if not (held_of(stats) or stats["stale"]) or time.perf_counter() > deadline_s:
            return stats
        await asyncio.sleep(_POLL_S)


def held_of(stats: Stats) -> int:
    """Count everything that is held: sequences, open responses, states of decoders, blocks."""
    engine, api, tokenizer = stats["engine"], stats["api"], stats["tokenizer"] or {}
    blocks = engine["blocks_total"] - engine["blocks_free"] - engine["blocks_cached"]
    return int(
        len(stats["live"])
        + blocks
        + sum(api[name] for name in ("sessions", "live", "tombstones"))
        + sum(tokenizer.values())
    )


def figures_of(readings: Sequence[Reading], before: Stats, after: Stats) -> dict[str, float]:
    """Combine what the clients read with `/stats` before and after."""

    def grown(name: str) -> int:
        return int(after["engine"][name] - before["engine"][name])

    n_read = sum(reading.n_tokens for reading in readings)
    generated = grown("generated_tokens_total") + grown("wasted_tokens_total")
    return {
        "tokens_read": n_read,
        "tokens_generated": generated,
        "generated_per_read": generated / max(n_read, 1),
        "accepted": grown("accepted_total"),
        "released": grown("released_total"),
        "violations": len(after["violations"]),
        "held": held_of(after),
    }


def verdicts(lab: Lab) -> list[Verdict]:
    """The first two concern the engine and its counters, whatever response class answered."""
    ours = [run for run in lab.runs if run.scenario == _LEAVING]
    deaf = [run for run in lab.runs if run.scenario.endswith(_WRITE_ONLY)]
    n_held, n_violations, n_accepted = (
        sum(run.figures[name] for run in lab.runs) for name in ("held", "violations", "accepted")
    )
    return [
        Verdict(
            "afterwards nothing is held and every rule holds",
            n_held == 0 and n_violations == 0,
            f"{n_held:.0f} things are held and {n_violations:.0f} rules broken after {n_accepted:.0f} sequences",
        ),
        Verdict(
            "what a stream held is released exactly once",
            all(run.figures["released"] == run.figures["accepted"] for run in lab.runs),
            ", ".join(f"{run.figures['released']:.0f} released of {run.figures['accepted']:.0f}" for run in lab.runs),
        ),
        lab.timed(
            "at most 1.1 tokens are generated for each that is read",
            all(run.figures["generated_per_read"] <= _MOST_PER_READ for run in ours),
            "; ".join(map(_waste, ours)),
        ),
        *(_of_what_only_writes(lab, ours[-1], run) for run in deaf),
    ]


def _of_what_only_writes(lab: Lab, ours: Run, other: Run) -> Verdict:
    """`ours` has as many streams."""
    n_whole = other.streams * _n_tokens(lab)
    more = other.figures["wall_s"] / ours.figures["wall_s"] - 1.0
    return lab.timed(
        "a response that never listens computes all requested tokens",
        other.figures["tokens_generated"] == n_whole,
        f"{_waste(other)}, {n_whole} asked for; ours: {_waste(ours)}; it takes {more * 100:.0f} % more time",
    )


def _waste(run: Run) -> str:
    generated, n_read, ratio = (run.figures[name] for name in ("tokens_generated", "tokens_read", "generated_per_read"))
    return f"{generated:.0f} generated, {n_read:.0f} read: {ratio:.3f}"


EXPERIMENT = Experiment(
    name="leak",
    question="What remains after hundreds of streams whose clients left, and how much is computed in vain?",
    run=_run,
    columns=(
        Column("wall_s", "wall s", digits=1),
        Column("accepted", "accepted", digits=0),
        Column("released", "released", digits=0),
        Column("held", "held after", digits=0),
        Column("violations", "violations", digits=0),
        Column("tokens_generated", "tokens generated", digits=0),
        Column("tokens_read", "read", digits=0),
        Column("generated_per_read", "generated per read", digits=3),
    ),
    drawn=("tokens_generated", "tokens_read"),
    not_shown=("clients that leave behind a proxy, or without a word",),
)
