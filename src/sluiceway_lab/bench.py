"""The benchmark: which runs there are, in which order, and what they amount to; on one server or two interleaved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load import scenarios
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Figures, Run, Say, rounded
from sluiceway_lab.load.scenarios import PREFILL_PROMPTS, RESIDENTS, SOAK_PARTS, Measured
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

SCENARIOS = ("streams", "prefill", "joiner", "close", "memory", "start")
"""What is measured by default."""
ALL_SCENARIOS = (*SCENARIOS, "soak")
LEVELS = (1, 2, 4, 8, 16, 32)
_MAX_LEVEL = 4096
_OTHER_REPEATS = 3
_QUICK_TOKENS = 32
_QUICK_ALONE = 4
_WARM_UP_TOKENS = 4
_SPEED = "tokens_per_s"
_SHORTER = 8
"""The short answers, which separate the cost of a request from that of an event, are shorter by this factor."""


class BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    `repeats` counts for the lowest and the highest level and for the run one after another; others have at most three.
    `alone` is how many prompts of the highest level also run one after another. `requests` are those of the soak.
    """

    levels: tuple[int, ...] = LEVELS
    repeats: int = 5
    tokens: int = 64
    alone: int = 32
    requests: int = 100_000
    seed: int = 0
    scenarios: tuple[str, ...] = SCENARIOS

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1 or max(self.levels) > _MAX_LEVEL:
            raise ConfigError("levels", f"must be numbers from 1 to {_MAX_LEVEL}, not {self.levels}")
        for field in ("repeats", "tokens", "alone", "requests"):
            if getattr(self, field) < 1:
                raise ConfigError(field, f"must be at least 1, not {getattr(self, field)}")
        for name in self.scenarios:
            if name not in ALL_SCENARIOS:
                raise ConfigError("scenario", f"must be one of {', '.join(ALL_SCENARIOS)}, not {name!r}")

    def quick(self, chosen: Container[str] = ()) -> BenchConfig:
        """Return a shorter version, which takes a minute or two. It gives a first idea, not a claim.

        Fields in `chosen` keep their values.
        """
        shorter = {
            "levels": tuple(level for level in self.levels if level in (min(self.levels), 8, max(self.levels))),
            "repeats": 1,
            "tokens": min(self.tokens, _QUICK_TOKENS),
            "alone": _QUICK_ALONE,
        }
        return msgspec.structs.replace(self, **{name: value for name, value in shorter.items() if name not in chosen})

    @property
    def short_tokens(self) -> int:
        return max(1, self.tokens // _SHORTER)

    def repeats_of(self, level: int) -> int:
        return self.repeats if level in (min(self.levels), max(self.levels)) else min(self.repeats, _OTHER_REPEATS)


Kind = Literal[
    "start", "alone", "together", "together_short", "prefill", "joiner", "close_stream", "close_plain", "memory", "soak"
]


@dataclass(frozen=True, slots=True)
class Job:
    """A run to come. `streams` run at the same time."""

    server: TargetServer
    kind: Kind
    streams: int = 0
    repeat: int = 0


async def bench_runs(config: BenchConfig, servers: Sequence[TargetServer], say: Say) -> AsyncIterator[Run]:
    """Run every scenario on every server, interleaved.

    Raises `LoadError` if a server does not answer at all, or if nothing can be measured. A run that fails later has no
    figures; the earlier runs are kept.
    """
    for line in left_out(config, servers):
        say(line)
    if not any(jobs(config, servers)):
        raise LoadError(f"nothing of {', '.join(config.scenarios)} can be measured of these servers")
    for server in servers:
        say(f"{server.name}: warming up")
        await _warm_up(server, max(config.levels), config.seed)
    for job in jobs(config, servers):
        run = await _attempt(job, config)
        say(_progress(run))
        yield run


def completed(runs: Sequence[Run]) -> list[Run]:
    """Add the figures that need several runs of the same server and repeat."""
    found = {(run.server, run.scenario, run.streams, run.repeat): run.figures for run in runs}
    return [rounded(msgspec.structs.replace(run, figures=run.figures | _further(run, found))) for run in runs]


def _further(run: Run, found: Mapping[tuple[str, str, int, int], Figures]) -> Figures:
    """Return how many times as fast as one after another several streams were, and what a request and an event cost."""
    if run.scenario != "together":
        return {}
    single = found.get((run.server, "alone", 1, run.repeat), {}).get(_SPEED)
    short = found.get((run.server, "together_short", run.streams, run.repeat), {})
    figures = scenarios.split_costs(run.figures, short)
    if run.streams > 1 and single is not None and _SPEED in run.figures:
        figures["over_alone"] = run.figures[_SPEED] / single
    return figures


def jobs(config: BenchConfig, servers: Sequence[TargetServer]) -> Iterator[Job]:
    """Return the runs in order. It leaves out what cannot be measured of a server."""
    if "start" in config.scenarios:
        yield from (Job(server, "start") for server in servers if server.ready_s is not None)
    if "streams" in config.scenarios:
        for repeat in range(config.repeats):
            yield from _stream_round(config, servers, repeat)
    few = min(config.repeats, _OTHER_REPEATS)
    if "prefill" in config.scenarios:
        yield from _rounds("prefill", PREFILL_PROMPTS, few, servers)
    if "joiner" in config.scenarios:
        yield from _rounds("joiner", RESIDENTS, few, servers)
    if "close" in config.scenarios:
        watched = [server for server in servers if server.kind is not None]
        yield from _rounds("close_stream", 1, config.repeats, watched)
        yield from _rounds("close_plain", 1, config.repeats, watched)
    if "soak" in config.scenarios:
        yield from _rounds("soak", max(config.levels), SOAK_PARTS, servers)
    if "memory" in config.scenarios:
        yield from (Job(server, "memory") for server in servers if server.processes)


def left_out(config: BenchConfig, servers: Sequence[TargetServer]) -> Iterator[str]:
    """Return a sentence for each wanted scenario that a server cannot be measured in."""
    for server in servers:
        if "close" in config.scenarios and server.kind is None:
            yield f"{server.name}: close is left out, as it shows no gauges that are known (llama.cpp: --metrics)"
        if "memory" in config.scenarios and not server.processes:
            yield f"{server.name}: memory is left out, as its processes are not known (--pid, --vs-pid)"


def _stream_round(config: BenchConfig, servers: Sequence[TargetServer], repeat: int) -> Iterator[Job]:
    """Run each level once, so that changes of the machine affect all levels."""
    ordered = _in_turn(servers, repeat)
    yield from (Job(server, "alone", 1, repeat) for server in ordered)
    for level in config.levels:
        if repeat < config.repeats_of(level):
            yield from (Job(server, "together", level, repeat) for server in ordered)
    seen = [server for server in ordered if server.processes]
    yield from (Job(server, "together_short", max(config.levels), repeat) for server in seen)


def _rounds(kind: Kind, streams: int, repeats: int, servers: Sequence[TargetServer]) -> Iterator[Job]:
    for repeat in range(repeats):
        yield from (Job(server, kind, streams, repeat) for server in _in_turn(servers, repeat))


def _in_turn(servers: Sequence[TargetServer], repeat: int) -> Sequence[TargetServer]:
    """Alternate which server is first, so that being first is no advantage."""
    return servers if repeat % 2 == 0 else servers[::-1]


async def _warm_up(server: TargetServer, streams: int, seed: int) -> None:
    requests = [server.request(prompt, _WARM_UP_TOKENS) for prompt in prompts(seed, "warm-up", streams)]
    await scenarios.observe(server, lambda: scenarios.together(server, requests))


async def _attempt(job: Job, config: BenchConfig) -> Run:
    server = job.server
    try:
        measured = await _measure(job, config)
    except LoadError as fault:
        measured = Measured({}, [str(fault)])
    return Run(
        server=server.name,
        scenario=job.kind,
        streams=job.streams,
        repeat=job.repeat,
        figures=measured.figures,
        errors=measured.errors,
    )


async def _measure(job: Job, config: BenchConfig) -> Measured:
    server, seed, repeat = job.server, config.seed, job.repeat
    match job.kind:
        case "alone":
            return await _streams(job, config, f"alone/{repeat}", min(config.alone, max(config.levels)))
        case "together" | "together_short":
            return await _streams(job, config, f"{job.kind}/{job.streams}/{repeat}", job.streams)
        case "prefill":
            return await scenarios.prefill(server, seed, repeat)
        case "joiner":
            return await scenarios.joiner(server, seed, repeat)
        case "close_stream" | "close_plain":
            return await scenarios.leaver(server, seed, repeat, is_streaming=job.kind == "close_stream")
        case "memory":
            return Measured(scenarios.memory_figures(server))
        case "soak":
            return await scenarios.soak(server, config.requests, job.streams, seed, repeat)
        case "start":
            assert server.ready_s is not None
            return Measured({"ready_s": server.ready_s})
        case _:
            assert_never(job.kind)


async def _streams(job: Job, config: BenchConfig, name: str, n: int) -> Measured:
    server = job.server
    n_tokens = config.short_tokens if job.kind == "together_short" else config.tokens
    requests = [server.request(text, n_tokens) for text in prompts(config.seed, name, n)]
    pace = scenarios.one_by_one if job.kind == "alone" else scenarios.together
    seen = await scenarios.observe(server, lambda: pace(server, requests))
    return Measured(scenarios.stream_figures(seen, n_tokens), seen.errors)


def _progress(run: Run) -> str:
    """Show the first of the main figures that the run has."""
    headline = (_SPEED, "prompt_tokens_per_s", "resident_stall_s", "until_idle_s", "requests_per_s", "ready_s")
    said = [f"{name} {run.figures[name]:g}" for name in headline if name in run.figures][:1]
    said += [f"{name} {value / 1e6:.1f} MB" for name, value in run.figures.items() if name.startswith("pss_")]
    said += [f"{len(run.errors)} failed ({run.errors[0]})"] if run.errors else []
    return f"{run.place}, repeat {run.repeat}: {', '.join(said)}"
