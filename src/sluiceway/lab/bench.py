"""The benchmark: streams at rising concurrency, and what else a server is asked, on one server or on two in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.lab.load.record import Run, Weights
from sluiceway.lab.load.scenarios import joiner, leaver, memory, prefill, start
from sluiceway.lab.load.streams import observe, one_by_one, stream_run, together
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.workload import prompts

SCENARIOS = ("streams", "prefill", "joiner", "close", "memory", "start")
LEVELS = (1, 2, 4, 8, 16, 32)
_MAX_LEVEL = 4096
_OTHER_REPEATS = 3
_QUICK_TOKENS = 32
_WARM_UP_TOKENS = 4
_SIGNIFICANT_DIGITS = 6


class BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`repeats` are those of the lowest and the highest level and of the back-to-back run; others get three at most.

    `alone` is how many of the highest level's prompts also run back-to-back.
    """

    levels: tuple[int, ...] = LEVELS
    repeats: int = 5
    tokens: int = 64
    alone: int = 32
    seed: int = 0
    scenarios: tuple[str, ...] = SCENARIOS

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1 or max(self.levels) > _MAX_LEVEL:
            raise ConfigError("levels", f"must be numbers from 1 to {_MAX_LEVEL}, not {self.levels}")
        for field in ("repeats", "tokens", "alone"):
            if getattr(self, field) < 1:
                raise ConfigError(field, f"must be at least 1, not {getattr(self, field)}")
        for name in self.scenarios:
            if name not in SCENARIOS:
                raise ConfigError("scenario", f"must be one of {', '.join(SCENARIOS)}, not {name!r}")

    def quick(self) -> BenchConfig:
        """A minute or two on a small machine: enough to see where it stands, not to claim it."""
        levels = tuple(level for level in self.levels if level in (min(self.levels), 8, max(self.levels)))
        return msgspec.structs.replace(self, levels=levels, repeats=1, tokens=min(self.tokens, _QUICK_TOKENS), alone=4)

    def repeats_of(self, level: int) -> int:
        return self.repeats if level in (min(self.levels), max(self.levels)) else min(self.repeats, _OTHER_REPEATS)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server, with what is known of it because we started it."""

    subject: Subject
    weights: Weights | None = None
    ready_s: float | None = None


Say = Callable[[str], None]
"""Shows a line of progress."""


async def run_bench(config: BenchConfig, contenders: Sequence[Contender], say: Say) -> list[Run]:
    """Every scenario on every contender, in turns. Raises `LoadError` where a server answers nothing at all."""
    runs = []
    async for run in _all_runs(config, contenders):
        runs.append(run)
        say(_progress(run))
    return [_rounded(run) for run in _with_ratio_to_alone(runs)]


async def _all_runs(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    steps = {
        "start": _starts,
        "streams": _streams,
        "prefill": _prefills,
        "joiner": _joiners,
        "close": _leavers,
        "memory": _memories,
    }
    for contender in contenders:
        await _warm_up(contender, max(config.levels), config.seed)
    for name, runs_of in steps.items():
        if name in config.scenarios:
            async for run in runs_of(config, contenders):
                yield run


async def _warm_up(contender: Contender, streams: int, seed: int) -> None:
    subject = contender.subject
    requests = [subject.request(prompt, _WARM_UP_TOKENS) for prompt in prompts(seed, "warm-up", streams)]
    await observe(subject, None, lambda: together(subject, requests))


async def _streams(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    """Each level once, then each again: what changes on the machine meanwhile changes for all levels."""
    for repeat in range(config.repeats):
        for contender in _in_turn(contenders, repeat):
            yield await _stream_run(config, contender, "alone", max(config.levels), repeat)
        for level in config.levels:
            if repeat < config.repeats_of(level):
                for contender in _in_turn(contenders, repeat):
                    yield await _stream_run(config, contender, "together", level, repeat)


async def _stream_run(config: BenchConfig, contender: Contender, scenario: str, level: int, repeat: int) -> Run:
    subject = contender.subject
    texts = prompts(config.seed, f"{scenario}/{level}/{repeat}", level)
    if scenario == "alone":
        texts, pace = texts[: config.alone], one_by_one
    else:
        pace = together
    requests = [subject.request(text, config.tokens) for text in texts]
    seen = await observe(subject, contender.weights, lambda: pace(subject, requests))
    return stream_run(subject, scenario, 1 if scenario == "alone" else level, repeat, seen, config.tokens)


async def _prefills(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    for repeat in range(min(config.repeats, _OTHER_REPEATS)):
        for contender in _in_turn(contenders, repeat):
            yield await prefill(contender.subject, contender.weights, config.seed, repeat)


async def _joiners(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    for repeat in range(min(config.repeats, _OTHER_REPEATS)):
        for contender in _in_turn(contenders, repeat):
            yield await joiner(contender.subject, config.seed, repeat)


async def _leavers(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    for repeat in range(config.repeats):
        for contender in _in_turn(contenders, repeat):
            if contender.subject.kind is not None:
                for is_streaming in (True, False):
                    yield await leaver(contender.subject, config.seed, repeat, is_streaming=is_streaming)


async def _memories(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    for contender in contenders:
        if contender.subject.processes:
            yield memory(contender.subject)


async def _starts(config: BenchConfig, contenders: Sequence[Contender]) -> AsyncIterator[Run]:
    for contender in contenders:
        if contender.ready_s is not None:
            yield start(contender.subject, contender.ready_s)


def _in_turn(contenders: Sequence[Contender], repeat: int) -> Sequence[Contender]:
    """Who is first changes, so that going first is nobody's advantage."""
    return contenders if repeat % 2 == 0 else contenders[::-1]


def _with_ratio_to_alone(runs: Sequence[Run]) -> list[Run]:
    """Adds to each run of several streams how many times as fast as the same repeat back-to-back it is."""
    alone = {(run.subject, run.repeat): run.figures["tokens_per_s"] for run in runs if run.scenario == "alone"}
    return [
        msgspec.structs.replace(run, figures=run.figures | {"over_alone": run.figures["tokens_per_s"] / single})
        if run.scenario == "together" and run.streams > 1 and (single := alone.get((run.subject, run.repeat)))
        else run
        for run in runs
    ]


def _rounded(run: Run) -> Run:
    """No clock is as exact as a float is long."""
    figures = {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in run.figures.items()}
    return msgspec.structs.replace(run, figures=figures)


def _progress(run: Run) -> str:
    """The first figure of interest that the run has."""
    headline = ("tokens_per_s", "prompt_tokens_per_s", "resident_longest_gap_s", "until_idle_s", "pss_bytes", "ready_s")
    shown = next((f"{name} {run.figures[name]:g}" for name in headline if name in run.figures), "")
    failed = f", {len(run.errors)} failed" if run.errors else ""
    return f"{run.subject}, {run.scenario} {run.streams}, repeat {run.repeat}: {shown}{failed}"
