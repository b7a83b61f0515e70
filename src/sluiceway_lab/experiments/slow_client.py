"""Slows down some of several readers, and measures under each policy what the others notice, and what is held."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.experiments.readers import CUT, Habit, Reading, read
from sluiceway_lab.load.record import Verdict, percentile
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, total
from sluiceway_lab.load.workload import prompts

_STREAMS = 8
_PAD_BYTES = 64 * 1024
_POLL_S = 0.2
_LINGER_S = 1.0
"""Long enough to see what is held for slow readers alone."""
_SAMPLE_TOKENS = 32
_MOST = 1.05
_STALL = 2.0
_NAIVE, _DROP, _DEGREES = "naive", "drop", "pause-park-drop"
_DONE, _RATIO, _ERROR, _OUT, _CUT = "healthy_completion_s", "healthy_ratio", "slow_told", "slow_out_s", "slow_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowClientScale:
    """How much is measured.

    Streams have `n_tokens`, or what a computing model makes in about `for_s`. `repeats` are those of each policy; the
    naive server is measured once.
    """

    name: str
    pad_bytes: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of a request."""
    n_tokens: int
    for_s: float
    sleep_s: float
    """How long a slow reader sleeps after each read."""
    fake_step_s: float
    n_slow: tuple[int, ...] = (1, 2, 4)
    repeats: int = 1
    park_after_s: float = 1.0
    drop_after_s: float = 4.0

    @property
    def policies(self) -> dict[str, Any]:
        """What a request says to choose each policy."""
        return {
            "unbounded": "unbounded",
            "pause": "pause",
            _DROP: {"policy": _DROP, "drop_after_s": self.park_after_s},
            _DEGREES: {"policy": _DEGREES, "park_after_s": self.park_after_s, "drop_after_s": self.drop_after_s},
        }


_PADDED = SlowClientScale(
    name="padded", pad_bytes=_PAD_BYTES, n_tokens=64, for_s=1.6, sleep_s=0.25, fake_step_s=0.02, repeats=2
)
_REAL = SlowClientScale(
    name="real", fields={"logprobs": 5}, n_tokens=2000, for_s=3.5, sleep_s=2.0, fake_step_s=0.001, repeats=2
)
_SMOKE_POLICIES = ("unbounded", _DEGREES)
_SMOKE = SlowClientScale(
    name="padded", pad_bytes=_PAD_BYTES, n_tokens=16, for_s=0.1, sleep_s=0.2, fake_step_s=0.0,
    n_slow=(1,), park_after_s=0.1, drop_after_s=0.3,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLoad:
    """What every stream is asked for, and how long it takes without slow readers."""

    server: TargetServer
    scale: SlowClientScale
    n_tokens: int
    usual_s: float

    def requests(self, seed: int, policy: Any) -> list[bytes]:
        """Make the requests of all streams. Without a policy, the server decides."""
        fields = dict(self.scale.fields) | ({} if policy is None else {"sluiceway": {"slow_client": policy}})
        texts = prompts(seed, "slow-client", _STREAMS)
        return [self.server.request(text, self.n_tokens, **fields) for text in texts]

    def slow(self, policy: str) -> Habit:
        """When a slow reader leaves: after the others, or, if these wait for it, after the time they would need."""
        for_s = self.usual_s * (_STALL + 1 if policy == _NAIVE else 1.1) + _LINGER_S
        return Habit(sleep_s=self.scale.sleep_s, for_s=for_s, is_narrow=not self.scale.pad_bytes)


async def _run(lab: Lab) -> list[Verdict]:
    for scale in lab.pick((_PADDED, _REAL), (_SMOKE,)):
        # With large events, steps of the fake model must be long, or the machine only copies bytes.
        steps = ("--fake-step", str(scale.fake_step_s)) if lab.is_fake else ()
        async with lab.server(*steps, pad_bytes=scale.pad_bytes) as server:
            load = await _sized(lab, server, scale)
            for repeat in range(scale.repeats):
                for name in lab.pick(tuple(scale.policies), _SMOKE_POLICIES):
                    await _compared(lab, load, name, scale.policies[name], repeat)
        if not lab.is_smoke:
            # The server behind the front drops no reader, so everything waits in the front.
            async with lab.server(
                *steps, "--slow-client", "unbounded", front=_NAIVE, pad_bytes=scale.pad_bytes
            ) as server:
                await _compared(lab, await _sized(lab, server, scale), _NAIVE, None, 0)
    return verdicts(lab)


async def _sized(lab: Lab, server: TargetServer, scale: SlowClientScale) -> ScaledLoad:
    """Choose as many tokens as the server makes in the time, within bounds."""
    sample = ScaledLoad(server=server, scale=scale, n_tokens=_SAMPLE_TOKENS, usual_s=0.0).requests(lab.seed, None)
    readings = await asyncio.gather(*(read(server.target, request, Habit()) for request in sample))
    a_token_s = statistics.median(itl_s for reading in readings for itl_s in reading.itls_s)
    n_in_time = scale.n_tokens if lab.is_fake else max(_SAMPLE_TOKENS, round(scale.for_s / a_token_s))
    n_tokens = min(scale.n_tokens, n_in_time)
    lab.say(f"{scale.name}: {n_tokens} tokens for each of {_STREAMS} streams, {1e3 * a_token_s:.1f} ms each")
    return ScaledLoad(server=server, scale=scale, n_tokens=n_tokens, usual_s=n_tokens * a_token_s)


async def _compared(lab: Lab, load: ScaledLoad, name: str, policy: Any, repeat: int) -> None:
    """Run without slow readers, with more and more of them, and without again."""
    scale = load.scale
    levels = (0, *scale.n_slow) if lab.is_smoke else (0, *scale.n_slow, 0)
    rounds = [await _round(load, load.requests(lab.seed, policy), n_slow, load.slow(name)) for n_slow in levels]
    usual_s = statistics.mean(figures[_DONE] for n_slow, figures in zip(levels, rounds, strict=True) if not n_slow)
    for n_slow, figures in zip(levels, rounds, strict=True):
        ratio = {_RATIO: figures[_DONE] / usual_s} if n_slow else {}
        scenario = f"{scale.name}, {name}"
        lab.note(load.server.name, scenario, figures | ratio, streams=n_slow, repeat=repeat)


async def _round(load: ScaledLoad, requests: Sequence[bytes], n_slow: int, slow: Habit) -> dict[str, float]:
    """Run all streams together, and read some of them slowly."""
    target, watch = load.server.target, ServerWatch(load.server)
    watching = asyncio.create_task(watch.run())
    started_s, spent_s = time.perf_counter(), time.process_time()
    try:
        lagging = [asyncio.create_task(read(target, request, slow)) for request in requests[:n_slow]]
        healthy = await asyncio.gather(*(read(target, request, Habit()) for request in requests[n_slow:]))
        watch.healthy_end_s = time.perf_counter()
        cores = (time.process_time() - spent_s) / (watch.healthy_end_s - started_s)
        late = await asyncio.gather(*lagging)
    finally:
        watching.cancel()
    figures = healthy_figures(healthy) | {"tokens": load.n_tokens, "client_cores": cores}
    return figures | (slow_figures(late, watch) if n_slow else {})


@dataclass(slots=True)
class HeldSample:
    at_s: float
    holders: int
    """Sequences that hold blocks, and so a slot."""
    blocks: int
    backlog_bytes: float


@dataclass(slots=True)
class ServerWatch:
    """Samples what the server holds, several times a second."""

    server: TargetServer
    healthy_end_s: float = float("inf")
    started_s: float = field(default_factory=time.perf_counter)
    looks: list[HeldSample] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            stats = await self.server.json("/stats")
            backlog = total(await self.server.samples(), "sluiceway_stream_backlog_bytes")
            blocks = [one["blocks"] for one in stats["live"] if one["blocks"]]
            self.looks.append(HeldSample(time.perf_counter(), len(blocks), sum(blocks), backlog))
            await asyncio.sleep(_POLL_S)


def healthy_figures(readings: list[Reading]) -> dict[str, float]:
    itls_s = [itl_s for reading in readings for itl_s in reading.itls_s]
    return {
        _DONE: statistics.mean(reading.completion_s for reading in readings),
        "healthy_itl_p99_s": percentile(itls_s, 99),
    }


def slow_figures(readings: list[Reading], watch: ServerWatch) -> dict[str, float]:
    """Return what is held when only slow streams are left. `_OUT` is when they last held blocks."""
    alone = [look for look in watch.looks if look.at_s >= watch.healthy_end_s]
    last_s = max((look.at_s for look in watch.looks if look.holders), default=watch.started_s)
    return {
        _OUT: last_s - watch.started_s,
        "held_bytes": max(look.backlog_bytes for look in watch.looks),
        "held_slots": max((look.holders for look in alone), default=0),
        "held_blocks": max((look.blocks for look in alone), default=0),
        _ERROR: sum(reading.end == "slow_client" for reading in readings) / len(readings),
        _CUT: sum(reading.end == CUT for reading in readings),
    }


def verdicts(lab: Lab) -> list[Verdict]:
    by_scenario: dict[str, dict[int, list[Mapping[str, float]]]] = {}
    for run in lab.runs:
        if run.streams:
            by_scenario.setdefault(run.scenario, {}).setdefault(run.streams, []).append(run.figures)
    slow = [figures for by_slow in by_scenario.values() for repeats in by_slow.values() for figures in repeats]
    n_cut = sum(figures[_CUT] for figures in slow)
    return [
        *(_disturbance(lab, scenario, by_slow) for scenario, by_slow in by_scenario.items()),
        Verdict("no slow reader is cut off without an error", n_cut == 0, f"{n_cut:.0f} were, in {len(slow)} runs"),
    ]


def _disturbance(lab: Lab, scenario: str, by_slow: Mapping[int, Sequence[Mapping[str, float]]]) -> Verdict:
    """Judge by the median of the repeats. With a naive server, all streams should wait."""
    ratios = {n: statistics.median(figures[_RATIO] for figures in repeats) for n, repeats in by_slow.items()}
    counted = ", ".join(f"{ratio:.3f} with {n} slow" for n, ratio in ratios.items())
    said = f"times as long as without slow readers: {counted}"
    if scenario.endswith(_NAIVE):
        return lab.timed(f"{scenario}: healthy streams wait for the slow ones", min(ratios.values()) > _STALL, said)
    return lab.timed(f"{scenario}: healthy streams take at most 5 % longer", max(ratios.values()) <= _MOST, said)


EXPERIMENT = Experiment(
    name="slow-client",
    question="One, two or four of eight readers are slow: who pays, and how much?",
    run=_run,
    columns=(
        Column("tokens", "tokens", digits=0),
        Column(_DONE, "healthy s", digits=2, is_spread=True),
        Column(_RATIO, "of usual", digits=3),
        Column("healthy_itl_p99_s", "ITL p99 ms", 1e3),
        Column(_OUT, "slow out after s", digits=1),
        Column("held_bytes", "held kB", 1e-3, 0),
        Column("held_slots", "slots", digits=0),
        Column("held_blocks", "blocks", digits=0),
        Column(_ERROR, "got the error %", 100, 0),
        Column("client_cores", "client's CPU", digits=2),
    ),
    drawn=(_DONE, "held_bytes"),
    not_shown=(
        "what is held is looked at five times a second, and not between",
        "what becomes of a slow reader in the end where no policy ends it: it leaves when the others are done",
    ),
)
