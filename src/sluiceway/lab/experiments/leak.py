"""Many streams on few slots, most of which are left: what is kept afterwards, and what was computed for nobody."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from sluiceway.config import ModelKind
from sluiceway.lab.experiments.experiment import Experiment, Lab, Verdict
from sluiceway.lab.experiments.readers import CUT, LEFT, WHOLE, Habit, Reading, read
from sluiceway.lab.load.calls import get
from sluiceway.lab.load.record import Run
from sluiceway.lab.load.replies import LoadError
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.tables import Column
from sluiceway.lab.load.workload import prompts
from sluiceway.lab.session import Own

_SLOTS = 8
_CLIENTS, _STREAMS, _TOKENS = 48, 300, 64
_FAKE_STREAMS = 10_000
_SMOKE_CLIENTS, _SMOKE_STREAMS, _SMOKE_TOKENS = 12, 40, 24
_SLOW_S, _SMOKE_SLOW_S = 0.25, 0.02
_SETTLE_S = 10.0
_POLL_S = 0.05
_MOST_PER_READ = 1.1

Stats = dict[str, Any]


async def _run(lab: Lab) -> list[Verdict]:
    n_clients, n_streams = (_SMOKE_CLIENTS, _SMOKE_STREAMS) if lab.is_smoke else (_CLIENTS, _n_streams(lab))
    habits = drawn_habits(random.Random(lab.seed), n_streams, _SMOKE_SLOW_S if lab.is_smoke else _SLOW_S)
    flags = ("--max-running", str(_SLOTS)) if lab.is_own else ()
    async with lab.server(*flags) as subject:
        before = await _settled(subject)
        started_s = time.perf_counter()
        readings, errors = await _read_all(lab, subject, habits, n_clients)
        wall_s = time.perf_counter() - started_s
        after = await _settled(subject)
    lab.note(
        Run(
            subject=subject.name,
            scenario="leaving",
            streams=n_streams,
            repeat=0,
            figures={"wall_s": wall_s, **figures_of(readings, before, after)},
            errors=errors + after["violations"],
        )
    )
    return verdicts(lab)


def _n_streams(lab: Lab) -> int:
    """More of them where a token costs nothing."""
    is_fake = isinstance(lab.first, Own) and lab.first.files.kind is ModelKind.FAKE
    return _FAKE_STREAMS if is_fake else _STREAMS


def drawn_habits(drawing: random.Random, n: int, slow_s: float) -> list[Habit]:
    """35 of 100 read to the end, 50 leave after 0 to 40 tokens, 15 are slow and leave after 3 or 10 reads."""
    habits = [Habit() for _ in range(round(0.35 * n))]
    habits += [
        Habit(sleep_s=slow_s, n_reads=drawing.choice((3, 10)), resets=drawing.random() < 0.5, is_narrow=True)
        for _ in range(round(0.15 * n))
    ]
    while len(habits) < n:
        habits.append(Habit(n_tokens=drawing.randint(0, 40), resets=drawing.random() < 0.5))
    drawing.shuffle(habits)
    return habits


async def _read_all(
    lab: Lab, subject: Subject, habits: Sequence[Habit], n_clients: int
) -> tuple[list[Reading], list[str]]:
    """Each client takes the next stream as soon as it is done with one."""
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else _TOKENS
    waiting = iter(zip(habits, prompts(lab.seed, "leak", len(habits)), strict=True))
    readings: list[Reading] = []
    errors: list[str] = []

    async def client() -> None:
        for habit, prompt in waiting:
            try:
                readings.append(await read(subject.target, subject.request(prompt, n_tokens), habit))
            except LoadError as fault:
                errors.append(str(fault))

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return readings, errors + [f"an answer ended with {one.end}" for one in readings if one.end not in (WHOLE, LEFT)]


async def _settled(subject: Subject) -> Stats:
    """The server's account once nothing lives; after some seconds, with what still does."""
    deadline_s = time.perf_counter() + _SETTLE_S
    while True:
        stats: Stats = msgspec.json.decode((await get(subject.target, "/stats")).body)
        if "engine" not in stats:
            raise LoadError(f"{subject.target.url}/stats is not that of Sluiceway")
        if not (held_of(stats) or stats["stale"]) or time.perf_counter() > deadline_s:
            return stats
        await asyncio.sleep(_POLL_S)


def held_of(stats: Stats) -> int:
    """Everything that is held for somebody: sequences, open answers, states of decoders, blocks."""
    engine, api, tokenizer = stats["engine"], stats["api"], stats["tokenizer"] or {}
    blocks = engine["blocks_total"] - engine["blocks_free"] - engine["blocks_cached"]
    return int(
        len(stats["live"])
        + blocks
        + sum(api[name] for name in ("sessions", "live", "tombstones"))
        + sum(tokenizer.values())
    )


def figures_of(readings: Sequence[Reading], before: Stats, after: Stats) -> dict[str, float]:
    """By the client's count of what it read, and the server's accounts before and after."""

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
        "cut": sum(reading.end == CUT for reading in readings),
    }


def verdicts(lab: Lab) -> list[Verdict]:
    (figures,) = (run.figures for run in lab.runs)
    return [
        Verdict(
            "afterwards nothing is held and every rule holds",
            figures["held"] == 0 and figures["violations"] == 0,
            f"{figures['held']:.0f} things are held and {figures['violations']:.0f} rules broken after "
            f"{figures['accepted']:.0f} sequences",
        ),
        Verdict(
            "what a stream held is given back exactly once",
            figures["released"] == figures["accepted"],
            f"{figures['accepted']:.0f} were accepted, {figures['released']:.0f} released",
        ),
        lab.timed(
            "at most 1.1 tokens are generated for each that is read",
            figures["generated_per_read"] <= _MOST_PER_READ,
            f"{figures['tokens_generated']:.0f} generated, {figures['tokens_read']:.0f} read: "
            f"{figures['generated_per_read']:.3f}",
        ),
    ]


EXPERIMENT = Experiment(
    name="leak",
    question="What is left behind by hundreds of streams that are left, and how much is computed for nobody?",
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
    not_shown=("how a response that only writes and never listens would do: the server has none",),
)
