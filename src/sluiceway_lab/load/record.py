"""The one form that every measurement of the lab is kept in, and what its raw numbers come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sluiceway_lab.load.statistics import Spread, spread_of

SCHEMA = "sluiceway.lab/1"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, once, on one server. Figures have their unit in their name; one that is not known is not there."""

    subject: str
    scenario: str
    streams: int
    repeat: int
    figures: dict[str, float]
    errors: list[str] = []
    """What went wrong, a sentence for each request that failed. The figures are those of the others."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The repeats of one scenario on one server."""

    subject: str
    scenario: str
    streams: int
    figures: dict[str, Spread]
    n_errors: int


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the first server over the same of the second, from runs that took turns."""

    scenario: str
    streams: int
    figures: dict[str, Spread]


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine gives: the best of several tries, by the library that computes the model."""

    device: str
    threads: int
    memory_gb_per_s: float
    bfloat16_gflop_per_s: float
    float32_gflop_per_s: float


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What one step reads of a model, whatever its rows; and how much of it is the head, which only some rows need."""

    dtype: str
    parameters: int
    head_parameters: int
    step_bytes: int


class SubjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server that was measured."""

    name: str
    url: str
    kind: str | None
    """Which server it is, by its own numbers; None if they are not known here."""
    version: str | None
    model: str
    extras: dict[str, Any]
    """Fields that it was sent, beyond what every server knows."""
    serve_flags: list[str] | None = None
    """How it was started; None if it was there already."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    platform: str
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None
    load_before: float
    """Processes that ran or wanted to, averaged over a minute: near 0 on a machine that is ours alone."""
    load_after: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement: what was asked of what on which machine, the raw numbers, and their summary."""

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
    subjects: list[SubjectFacts]
    runs: list[Run]
    summary: list[Summary]
    ratios: list[Ratio]
    is_partial: bool = False
    """Whether it was stopped before its end: these are the runs that had been made."""


def summarize(runs: Sequence[Run]) -> list[Summary]:
    """In the order of first appearance."""
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.streams, run.subject), []).append(run)
    return [
        Summary(
            subject=subject,
            scenario=scenario,
            streams=streams,
            figures={name: spread_of(values) for name, values in _series(group).items()},
            n_errors=sum(len(run.errors) for run in group),
        )
        for (scenario, streams, subject), group in groups.items()
    ]


def compare(runs: Sequence[Run], first: str, second: str) -> list[Ratio]:
    """Each repeat of one server over the same repeat of the other: what disturbed both leaves the ratio alone."""
    by_place = {(run.scenario, run.streams, run.repeat, run.subject): run.figures for run in runs}
    ratios: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        other = by_place.get((run.scenario, run.streams, run.repeat, second))
        if run.subject == first and other is not None:
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
    """The values of each figure, from the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    return {name: [run.figures[name] for run in runs if name in run.figures] for name in names}
