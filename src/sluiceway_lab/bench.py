"""The benchmark: streams at rising concurrency, and what else a server is asked, on one server or on two in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.record import Run, Say, Weights
from sluiceway_lab.load.replies import LoadError
from sluiceway_lab.load.scenarios import PREFILL_PROMPTS, RESIDENTS, joiner, leaver, memory, prefill, start
from sluiceway_lab.load.soak import SOAK_PARTS, soak
from sluiceway_lab.load.streams import observe, one_by_one, split_costs, stream_run, together
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

SCENARIOS = ("streams", "prefill", "joiner", "close", "memory", "start")
"""What is measured unless somebody chooses."""
ALL_SCENARIOS = (*SCENARIOS, "soak")
LEVELS = (1, 2, 4, 8, 16, 32)
_MAX_LEVEL = 4096
_OTHER_REPEATS = 3
_QUICK_TOKENS = 32
_QUICK_ALONE = 4
_WARM_UP_TOKENS = 4
_SIGNIFICANT_DIGITS = 6
_SPEED = "tokens_per_s"
_SHORTER = 8
"""By so much are the short answers shorter that tell what a request costs from what an event costs."""


class BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`repeats` are those of the lowest and the highest level and of the back-to-back run; others get three at most.

    `alone` is how many of the highest level's prompts also run back-to-back; `requests` are those of the soak.
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
        """A minute or two on a small machine: enough to see where it stands, not to claim it.

        Fields in `chosen` stay as they are.
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


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server, with what is known of it because we started it."""

    server: TargetServer
    weights: Weights | None = None
    ready_s: float | None = None


Kind = Literal[
    "start", "alone", "together", "together_short", "prefill", "joiner", "close_stream", "close_plain", "memory", "soak"
]


@dataclass(frozen=True, slots=True)
class Job:
    """One run to come. `streams` are those at once, as the record tells them."""

    contender: Contender
    kind: Kind
    streams: int = 0
    repeat: int = 0


async def bench_runs(config: BenchConfig, contenders: Sequence[Contender], say: Say) -> AsyncIterator[Run]:
    """Every scenario on every contender, in turns; see `completed` for what they come to together.

    Raises `LoadError` for a server that answers nothing from the first, and where nothing is left to measure. A run
    that fails later is one without figures: what was measured before it is worth keeping.
    """
    for line in left_out(config, contenders):
        say(line)
    if not any(jobs(config, contenders)):
        raise LoadError(f"nothing of {', '.join(config.scenarios)} can be measured of these servers")
    for contender in contenders:
        say(f"{contender.server.name}: warming up")
        await _warm_up(contender, max(config.levels), config.seed)
    for job in jobs(config, contenders):
        run = await _attempt(job, config)
        say(_progress(run))
        yield run


def completed(runs: Sequence[Run]) -> list[Run]:
    """With the figures that take several runs: of the same server, in the same repeat, whichever of them there are."""
    return [_rounded(run) for run in _with_split_costs(_with_ratio_to_alone(runs))]


def jobs(config: BenchConfig, contenders: Sequence[Contender]) -> Iterator[Job]:
    """What is to be done, in order; only what can be seen of a server is asked of it."""
    if "start" in config.scenarios:
        yield from (Job(contender, "start") for contender in contenders if contender.ready_s is not None)
    if "streams" in config.scenarios:
        for repeat in range(config.repeats):
            yield from _stream_round(config, contenders, repeat)
    few = min(config.repeats, _OTHER_REPEATS)
    if "prefill" in config.scenarios:
        yield from _rounds("prefill", PREFILL_PROMPTS, few, contenders)
    if "joiner" in config.scenarios:
        yield from _rounds("joiner", RESIDENTS, few, contenders)
    if "close" in config.scenarios:
        watched = [contender for contender in contenders if contender.server.kind is not None]
        yield from _rounds("close_stream", 1, config.repeats, watched)
        yield from _rounds("close_plain", 1, config.repeats, watched)
    if "soak" in config.scenarios:
        yield from _rounds("soak", max(config.levels), SOAK_PARTS, contenders)
    if "memory" in config.scenarios:
        yield from (Job(contender, "memory") for contender in contenders if contender.server.processes)


def left_out(config: BenchConfig, contenders: Sequence[Contender]) -> Iterator[str]:
    """A sentence for each scenario that is wanted, and that a server keeps from being seen."""
    for contender in contenders:
        server = contender.server
        if "close" in config.scenarios and server.kind is None:
            yield f"{server.name}: close is left out, as it shows no gauges that are known (llama.cpp: --metrics)"
        if "memory" in config.scenarios and not server.processes:
            yield f"{server.name}: memory is left out, as its processes are not known (--pid, --vs-pid)"


def _stream_round(config: BenchConfig, contenders: Sequence[Contender], repeat: int) -> Iterator[Job]:
    """Each level once, so that what changes on the machine from round to round changes for all levels."""
    ordered = _in_turn(contenders, repeat)
    yield from (Job(contender, "alone", 1, repeat) for contender in ordered)
    for level in config.levels:
        if repeat < config.repeats_of(level):
            yield from (Job(contender, "together", level, repeat) for contender in ordered)
    seen = [contender for contender in ordered if contender.server.processes]
    yield from (Job(contender, "together_short", max(config.levels), repeat) for contender in seen)


def _rounds(kind: Kind, streams: int, repeats: int, contenders: Sequence[Contender]) -> Iterator[Job]:
    for repeat in range(repeats):
        yield from (Job(contender, kind, streams, repeat) for contender in _in_turn(contenders, repeat))


def _in_turn(contenders: Sequence[Contender], repeat: int) -> Sequence[Contender]:
    """Who is first changes, so that going first is nobody's advantage."""
    return contenders if repeat % 2 == 0 else contenders[::-1]


async def _warm_up(contender: Contender, streams: int, seed: int) -> None:
    server = contender.server
    requests = [server.request(prompt, _WARM_UP_TOKENS) for prompt in prompts(seed, "warm-up", streams)]
    await observe(server, None, lambda: together(server, requests))


async def _attempt(job: Job, config: BenchConfig) -> Run:
    try:
        return await _run(job, config)
    except LoadError as fault:
        name = job.contender.server.name
        return Run(
            server=name, scenario=job.kind, streams=job.streams, repeat=job.repeat, figures={}, errors=[str(fault)]
        )


async def _run(job: Job, config: BenchConfig) -> Run:
    contender, seed, repeat = job.contender, config.seed, job.repeat
    match job.kind:
        case "alone":
            texts = prompts(seed, f"alone/{repeat}", min(config.alone, max(config.levels)))
            return await _run_streams(job, config, texts)
        case "together" | "together_short":
            return await _run_streams(job, config, prompts(seed, f"{job.kind}/{job.streams}/{repeat}", job.streams))
        case "prefill":
            return await prefill(contender.server, contender.weights, seed, repeat)
        case "joiner":
            return await joiner(contender.server, seed, repeat)
        case "close_stream" | "close_plain":
            return await leaver(contender.server, seed, repeat, is_streaming=job.kind == "close_stream")
        case "memory":
            return memory(contender.server)
        case "soak":
            return await soak(contender.server, config.requests, job.streams, seed, repeat)
        case "start":
            assert contender.ready_s is not None
            return start(contender.server, contender.ready_s)
        case _:
            assert_never(job.kind)


async def _run_streams(job: Job, config: BenchConfig, texts: Sequence[str]) -> Run:
    server = job.contender.server
    n_tokens = config.short_tokens if job.kind == "together_short" else config.tokens
    requests = [server.request(text, n_tokens) for text in texts]
    pace = one_by_one if job.kind == "alone" else together
    seen = await observe(server, job.contender.weights, lambda: pace(server, requests))
    return stream_run(server, job.kind, job.streams, job.repeat, seen, n_tokens)


def _with_ratio_to_alone(runs: Sequence[Run]) -> list[Run]:
    """Adds to each run of several streams how many times as fast as the same repeat back-to-back it is."""
    alone = {(run.server, run.repeat): run.figures.get(_SPEED) for run in runs if run.scenario == "alone"}
    return [_with_ratio(run, alone.get((run.server, run.repeat))) for run in runs]


def _with_ratio(run: Run, single: float | None) -> Run:
    if run.scenario != "together" or run.streams == 1 or single is None or _SPEED not in run.figures:
        return run
    return msgspec.structs.replace(run, figures=run.figures | {"over_alone": run.figures[_SPEED] / single})


def _with_split_costs(runs: Sequence[Run]) -> list[Run]:
    """Adds to each run of long answers what a request costs and what an event costs, where one of short ones is by."""
    short = {(run.server, run.streams, run.repeat): run for run in runs if run.scenario == "together_short"}
    return [_with_split(run, short.get((run.server, run.streams, run.repeat))) for run in runs]


def _with_split(run: Run, short: Run | None) -> Run:
    if run.scenario != "together" or short is None:
        return run
    return msgspec.structs.replace(run, figures=run.figures | split_costs(run.figures, short.figures))


def _rounded(run: Run) -> Run:
    """No clock is as exact as a float is long."""
    figures = {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in run.figures.items()}
    return msgspec.structs.replace(run, figures=figures)


def _progress(run: Run) -> str:
    """The first figure of interest that the run has."""
    headline = (_SPEED, "prompt_tokens_per_s", "resident_stall_s", "until_idle_s", "requests_per_s", "ready_s")
    said = [f"{name} {run.figures[name]:g}" for name in headline if name in run.figures][:1]
    said += [f"{name} {value / 1e6:.1f} MB" for name, value in run.figures.items() if name.startswith("pss_")]
    said += [f"{len(run.errors)} failed ({run.errors[0]})"] if run.errors else []
    return f"{run.server}, {run.scenario} {run.streams}, repeat {run.repeat}: {', '.join(said)}"
