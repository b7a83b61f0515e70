"""The record of a measurement: one type for `bench`, `check` and every experiment, and the summary of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

_SIGNIFICANT_DIGITS = 6
SCHEMA = "sluiceway.lab/2"
"""Version 1 had other names for some figures (`gap` for ITL), and was otherwise the same."""

Figures = dict[str, float]
"""Measured values by name. The name ends with the unit. A value that is not known is left out."""

Say = Callable[[str], None]
"""Shows a line of progress."""


class Spread(msgspec.Struct, frozen=True):
    """The spread of a figure over `n` repeats."""

    min: float
    median: float
    max: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Needs at least one value."""
    return Spread(min(values), statistics.median(values), max(values), len(values))


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, run once on one server."""

    server: str = msgspec.field(name="subject")
    scenario: str
    streams: int
    repeat: int
    figures: Figures
    errors: list[str] = []
    """A sentence for each request that failed. The figures are those of the other requests."""

    @property
    def place(self) -> str:
        """Server, scenario and number of streams, as tables and plots name a row."""
        return place_of(self.server, self.scenario, self.streams)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The repeats of one scenario on one server."""

    server: str = msgspec.field(name="subject")
    scenario: str
    streams: int
    figures: dict[str, Spread]
    n_errors: int

    @property
    def place(self) -> str:
        return place_of(self.server, self.scenario, self.streams)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Each figure of the first server divided by that of the second. Their runs were interleaved."""

    scenario: str
    streams: int
    figures: dict[str, Spread]

    @property
    def place(self) -> str:
        return f"{self.scenario} {self.streams}" if self.streams else self.scenario


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can do: the best of several tries with torch, which also computes the model."""

    device: str
    threads: int
    memory_gb_per_s: float
    bfloat16_gflop_per_s: float
    float32_gflop_per_s: float


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What one step reads of a model, for any number of rows. The head is read only for rows that sample."""

    dtype: str
    parameters: int
    head_parameters: int
    step_bytes: int


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server that was measured."""

    name: str
    url: str
    kind: str | None
    """Which server it is, recognised by its metrics; None if they are unknown."""
    version: str | None
    model: str
    extras: dict[str, Any]
    """Fields of its requests that not every server knows."""
    serve_flags: list[str] | None = None
    """The flags it was started with; None if it was running already."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    platform: str
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None
    load_before: float
    """The load average of one minute: near 0 on an idle machine."""
    load_after: float


class Verdict(msgspec.Struct, frozen=True):
    """Whether a hypothesis of an experiment held. `stood` is None if the run cannot tell.

    The sentence has the number, or says why there is none.
    """

    hypothesis: str
    stood: bool | None
    sentence: str


class Grade(StrEnum):
    """How a server answered a question of `check`.

    `WARN` is permitted behaviour that is worth knowing. With `UNKNOWN`, the sentence says why it could not be judged.
    """

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A question of `check` with its answer. Its figures are those of the run whose scenario has the same name."""

    question: str
    asks: str
    grade: Grade = msgspec.field(name="verdict")
    sentence: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement: what was measured where, the raw numbers, their summary, and the conclusions."""

    schema: str = SCHEMA
    experiment: str
    git_sha: str | None
    is_dirty: bool | None
    command: list[str]
    config: dict[str, Any]
    host: Host
    versions: dict[str, str]
    seed: int
    started_at: str
    duration_s: float
    floor: Floor | None
    weights: Weights | None
    servers: list[ServerFacts] = msgspec.field(name="subjects")
    runs: list[Run]
    summary: list[Summary]
    ratios: list[Ratio]
    is_partial: bool = False
    """True if the measurement was interrupted. The record then has the runs that had ended."""
    question: str = ""
    """The question of the experiment."""
    verdicts: list[Verdict] = []
    not_shown: list[str] = []
    """What the experiment leaves open, a sentence each."""
    findings: list[Answered] = []
    """The answers of `check`."""

    @property
    def has_failed(self) -> bool:
        """True if the server failed a question of `check`."""
        return any(found.grade is Grade.FAIL for found in self.findings)


def place_of(server: str, scenario: str, streams: int) -> str:
    return f"{server}, {scenario} {streams}" if streams else f"{server}, {scenario}"


def rounded(run: Run) -> Run:
    """Limit its figures to six digits. No clock is as exact as a float."""
    figures = {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in run.figures.items()}
    return msgspec.structs.replace(run, figures=figures)


def summarize(runs: Sequence[Run]) -> list[Summary]:
    """Return a summary for each scenario, in the order of first appearance."""
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.streams, run.server), []).append(run)
    return [
        Summary(
            server=server,
            scenario=scenario,
            streams=streams,
            figures={name: spread_of(values) for name, values in _series(group).items()},
            n_errors=sum(len(run.errors) for run in group),
        )
        for (scenario, streams, server), group in groups.items()
    ]


def compare(runs: Sequence[Run], first: str, second: str) -> list[Ratio]:
    """Divides each repeat of one server by the same repeat of the other, so that a disturbance of both cancels out."""
    by_place = {(run.scenario, run.streams, run.repeat, run.server): run.figures for run in runs}
    ratios: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        other = by_place.get((run.scenario, run.streams, run.repeat, second))
        if run.server == first and other is not None:
            figures = {name: value / other[name] for name, value in run.figures.items() if other.get(name)}
            ratios.setdefault((run.scenario, run.streams), []).append(msgspec.structs.replace(run, figures=figures))
    return [
        Ratio(
            scenario=scenario,
            streams=streams,
            figures={name: spread_of(values) for name, values in _series(group).items()},
        )
        for (scenario, streams), group in ratios.items()
    ]


def _series(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the values of each figure, from the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    return {name: [run.figures[name] for run in runs if name in run.figures] for name in names}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that at least `percent` of the values do not exceed. Needs at least one value."""
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `name_p50_s` and so on; nothing without values."""
    if not values:
        return {}
    points = {f"{name}_p{percent}_s": percentile(values, percent) for percent in (50, 90, 99)}
    return {f"{name}_min_s": min(values), **points, f"{name}_max_s": max(values)}
