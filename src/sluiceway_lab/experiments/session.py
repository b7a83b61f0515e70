"""Runs an experiment and makes its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.machine import Measurement
from sluiceway_lab.load.record import Record, Say
from sluiceway_lab.session import OwnServer, RunningServer


@dataclass(frozen=True, kw_only=True)
class LabSession:
    """One run of an experiment. `command` is the command line that repeats it."""

    experiment: Experiment
    first: OwnServer | RunningServer
    is_smoke: bool = False
    seed: int = 0
    command: Sequence[str] = ()

    def run(self, say: Say) -> Record:
        """Take minutes, or seconds in a smoke run. Stop everything that was started. Raises `LoadError`."""
        measurement = Measurement.begin()
        lab = Lab(first=self.first, is_smoke=self.is_smoke, seed=self.seed, say=say)
        verdicts = uvloop.run(self.experiment.run(lab))
        return measurement.record(
            self.experiment.name,
            self.command,
            {"smoke": self.is_smoke},
            lab.runs,
            seed=self.seed,
            servers=lab.servers,
            question=self.experiment.question,
            verdicts=verdicts,
            not_shown=list(self.experiment.not_shown),
        )
