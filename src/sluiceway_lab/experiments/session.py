"""From an experiment to the record of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import uvloop

from sluiceway_lab.experiments.experiment import Experiment, Lab, LabRecord, Say
from sluiceway_lab.load.machine import describe_host, load, sources, versions
from sluiceway_lab.load.record import summarize
from sluiceway_lab.session import Own, There


@dataclass(frozen=True, kw_only=True)
class LabSession:
    """One experiment, once. `command` is how a person would repeat it."""

    experiment: Experiment
    first: Own | There
    is_smoke: bool = False
    seed: int = 0
    command: Sequence[str] = ()

    def run(self, say: Say) -> LabRecord:
        """Takes minutes, in a smoke run seconds. Raises `LoadError`; nothing that was started is left behind."""
        started_at, started_s, load_before = datetime.now(UTC), time.perf_counter(), load()
        lab = Lab(first=self.first, is_smoke=self.is_smoke, seed=self.seed, say=say)
        verdicts = uvloop.run(self.experiment.run(lab))
        git_sha, is_dirty = sources()
        return LabRecord(
            experiment=self.experiment.name,
            git_sha=git_sha,
            is_dirty=is_dirty,
            command=list(self.command),
            config={"smoke": self.is_smoke},
            host=describe_host(load_before),
            versions=versions(),
            seed=self.seed,
            started_at=started_at.isoformat(timespec="seconds"),
            duration_s=round(time.perf_counter() - started_s, 3),
            floor=None,
            weights=None,
            subjects=lab.subjects,
            runs=lab.runs,
            summary=summarize(lab.runs),
            ratios=[],
            question=self.experiment.question,
            verdicts=verdicts,
            not_shown=list(self.experiment.not_shown),
        )
