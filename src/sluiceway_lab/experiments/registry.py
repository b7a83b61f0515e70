"""All experiments by name. A module is imported when its experiment is needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Experiment

NAMES = (
    *("overlap", "isolation", "first-token", "joiner", "sse", "buffers", "slow-client", "full-batch"),
    *("disconnect", "leak", "resume", "keep-alive", "eager", "paged-kernel"),
)
"""In the order of the list that `--list` prints."""


def experiment_of(name: str) -> Experiment:
    """Raises `ConfigError` for an unknown name."""
    if name not in NAMES:
        raise ConfigError("NAME", f"must be one of {', '.join(NAMES)}, not {name!r}")
    module = importlib.import_module(f"sluiceway_lab.experiments.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def experiments() -> Iterator[Experiment]:
    yield from map(experiment_of, NAMES)
