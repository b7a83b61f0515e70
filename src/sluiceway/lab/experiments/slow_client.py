"""Some of several readers are slow: what the others notice under each policy, what is held, what the slow are told."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluiceway.lab.experiments.experiment import Experiment, Lab, Verdict
from sluiceway.lab.experiments.padded import padded_server
from sluiceway.lab.experiments.readers import CUT, WHOLE, Habit, Reading, read
from sluiceway.lab.load.calls import get
from sluiceway.lab.load.record import Run
from sluiceway.lab.load.scrape import total
from sluiceway.lab.load.statistics import percentile
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.tables import Column
from sluiceway.lab.load.workload import prompts

_STREAMS = 8
_PAD_BYTES = 64 * 1024
_POLL_S = 0.2
_MOST = 1.05
_STALL = 2.0
_NAIVE, _DROP, _DEGREES = "naive", "drop", "pause-park-drop"
_DONE, _RATIO, _TOLD, _OUT, _CUT = "healthy_completion_s", "healthy_ratio", "slow_told", "slow_out_s", "slow_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is asked, and how long is waited. A slow reader leaves at last after `for_s`."""

    slow: tuple[int, ...]
    n_tokens: int
    sleep_s: float
    for_s: float
    park_after_s: float
    drop_after_s: float
    is_padded: bool = True

    @property
    def name(self) -> str:
        return "padded" if self.is_padded else "as they are"

    @property
    def policies(self) -> dict[str, Any]:
        """What a request says for each of them."""
        return {
            "unbounded": "unbounded",
            "pause": "pause",
            _DROP: {"policy": _DROP, "drop_after_s": self.park_after_s},
            _DEGREES: {"policy": _DEGREES, "park_after_s": self.park_after_s, "drop_after_s": self.drop_after_s},
        }


_PADDED = Scale(slow=(1, 2, 4), n_tokens=64, sleep_s=0.25, for_s=8.0, park_after_s=1.0, drop_after_s=4.0)
_PLAIN = Scale(slow=(4,), n_tokens=600, sleep_s=1.0, for_s=16.0, park_after_s=1.0, drop_after_s=4.0, is_padded=False)
_SMOKE_POLICIES = ("unbounded", _DEGREES)
_SMOKE = Scale(slow=(1,), n_tokens=16, sleep_s=0.2, for_s=0.6, park_after_s=0.1, drop_after_s=0.3)


async def _run(lab: Lab) -> list[Verdict]:
    for scale in [_SMOKE] if lab.is_smoke else [_PADDED, _PLAIN]:
        pad_bytes = _PAD_BYTES if scale.is_padded else 0
        async with padded_server(lab, pad_bytes) as subject:
            await _round(lab, subject, scale, 0, None)
            for name, wish in scale.policies.items():
                if lab.is_smoke and name not in _SMOKE_POLICIES:
                    continue
                await _compared(lab, subject, scale, name, wish)
        if not lab.is_smoke:
            async with padded_server(lab, pad_bytes, "--slow-client", _NAIVE) as subject:
                await _round(lab, subject, scale, 0, None)
                await _compared(lab, subject, scale, _NAIVE, None)
    return verdicts(lab)


async def _compared(lab: Lab, subject: Subject, scale: Scale, policy: str, wish: Any) -> None:
    """Without slow readers, with them, and without once more."""
    levels = (0, *scale.slow) if lab.is_smoke else (0, *scale.slow, 0)
    rounds = [await _round(lab, subject, scale, n_slow, wish) for n_slow in levels]
    usual_s = statistics.mean(figures[_DONE] for n_slow, figures in zip(levels, rounds, strict=True) if not n_slow)
    for place, (n_slow, figures) in enumerate(zip(levels, rounds, strict=True)):
        ratio = {_RATIO: figures[_DONE] / usual_s} if n_slow else {}
        repeat = int(n_slow == 0 and place > 0)
        scenario = f"{scale.name}, {policy}"
        lab.note(Run(subject=subject.name, scenario=scenario, streams=n_slow, repeat=repeat, figures=figures | ratio))


async def _round(lab: Lab, subject: Subject, scale: Scale, n_slow: int, wish: Any) -> dict[str, float]:
    """Eight streams at once, of which so many are read slowly."""
    fields = {} if wish is None else {"sluiceway": {"slow_client": wish}}
    requests = [subject.request(text, scale.n_tokens, **fields) for text in prompts(lab.seed, "slow-client", _STREAMS)]
    slow = Habit(sleep_s=scale.sleep_s, for_s=scale.for_s, is_narrow=not scale.is_padded)
    watch = Watch(subject)
    watching = asyncio.create_task(watch.run())
    try:
        lagging = [asyncio.create_task(read(subject.target, request, slow)) for request in requests[:n_slow]]
        healthy = await asyncio.gather(*(read(subject.target, request, Habit()) for request in requests[n_slow:]))
        watch.healthy_end_s = time.perf_counter()
        late = await asyncio.gather(*lagging)
    finally:
        watching.cancel()
    return healthy_figures(healthy) | (slow_figures(late, watch) if n_slow else {})


@dataclass(slots=True)
class Look:
    at_s: float
    holders: int
    """Sequences that have blocks, and with them a slot."""
    blocks: int
    backlog_bytes: float


@dataclass(slots=True)
class Watch:
    """Looks at what the server holds, several times a second."""

    subject: Subject
    healthy_end_s: float = float("inf")
    started_s: float = field(default_factory=time.perf_counter)
    looks: list[Look] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            stats = msgspec.json.decode((await get(self.subject.target, "/stats")).body)
            backlog = total(await self.subject.samples(), "sluiceway_stream_backlog_bytes")
            blocks = [one["blocks"] for one in stats["live"] if one["blocks"]]
            self.looks.append(Look(time.perf_counter(), len(blocks), sum(blocks), backlog))
            await asyncio.sleep(_POLL_S)


def healthy_figures(readings: list[Reading]) -> dict[str, float]:
    gaps_s = [gap_s for reading in readings for gap_s in reading.gaps_s]
    return {
        _DONE: statistics.mean(reading.completion_s for reading in readings),
        "healthy_gap_p99_s": percentile(gaps_s, 99),
    }


def slow_figures(readings: list[Reading], watch: Watch) -> dict[str, float]:
    """What is held once only the slow ones are left; `_OUT` is when they were last seen to hold blocks."""
    alone = [look for look in watch.looks if look.at_s >= watch.healthy_end_s]
    last_s = max((look.at_s for look in watch.looks if look.holders), default=watch.started_s)
    return {
        _OUT: last_s - watch.started_s,
        "held_bytes": max(look.backlog_bytes for look in watch.looks),
        "held_slots": max((look.holders for look in alone), default=0),
        "held_blocks": max((look.blocks for look in alone), default=0),
        _TOLD: sum(reading.end == "slow_client" for reading in readings) / len(readings),
        "slow_whole": sum(reading.end == WHOLE for reading in readings) / len(readings),
        _CUT: sum(reading.end == CUT for reading in readings),
    }


def verdicts(lab: Lab) -> list[Verdict]:
    by_scenario: dict[str, dict[int, Mapping[str, float]]] = {}
    for run in lab.runs:
        if run.streams:
            by_scenario.setdefault(run.scenario, {})[run.streams] = run.figures
    n_cut = sum(figures[_CUT] for by_slow in by_scenario.values() for figures in by_slow.values())
    return [
        *(_disturbance(lab, scenario, by_slow) for scenario, by_slow in by_scenario.items()),
        Verdict(
            "no slow reader is cut off without a word",
            n_cut == 0,
            f"{n_cut:.0f} were, in {sum(map(len, by_scenario.values()))} runs",
        ),
    ]


def _disturbance(lab: Lab, scenario: str, by_slow: Mapping[int, Mapping[str, float]]) -> Verdict:
    """A naive server is expected to let all wait."""
    ratios = [figures[_RATIO] for figures in by_slow.values()]
    counted = ", ".join(f"{figures[_RATIO]:.3f} with {n} slow" for n, figures in by_slow.items())
    said = f"times as long as without slow readers: {counted}"
    if scenario.endswith(_NAIVE):
        return lab.timed(f"{scenario}: healthy streams wait for the slow ones", min(ratios) > _STALL, said)
    return lab.timed(f"{scenario}: healthy streams take at most 5 % longer", max(ratios) <= _MOST, said)


EXPERIMENT = Experiment(
    name="slow-client",
    question="One, two or four of eight readers are slow: who pays, and how much?",
    run=_run,
    columns=(
        Column(_DONE, "healthy s", digits=2, is_spread=True),
        Column(_RATIO, "of usual", digits=3),
        Column("healthy_gap_p99_s", "gap p99 ms", 1e3),
        Column(_OUT, "slow out after s", digits=1),
        Column("held_bytes", "held kB", 1e-3, 0),
        Column("held_slots", "slots", digits=0),
        Column("held_blocks", "blocks", digits=0),
        Column(_TOLD, "told %", 100, 0),
        Column("slow_whole", "whole %", 100, 0),
    ),
    drawn=(_DONE, "held_bytes"),
    not_shown=(
        "what is held is looked at five times a second, and not between",
        "events with log-probabilities: the server has none, so padded events stand for long ones",
        "a slow reader that would be served to its end in time leaves when the run has shown what it holds",
    ),
)
