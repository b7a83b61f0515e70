"""All experiments by name. A module is imported when its experiment is needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Experiment

_MODULES = {
    "overlap": "overlap",
    "isolation": "isolation",
    "first-token": "first_token",
    "joiner": "joiner",
    "sse": "sse",
    "buffers": "buffers",
    "slow-client": "slow_client",
    "full-batch": "full_batch",
    "disconnect": "disconnect",
    "leak": "leak",
    "resume": "resume",
    "keep-alive": "keep_alive",
    "eager": "eager",
    "paged-kernel": "paged_kernel",
}
"""In the order of the list that `--list` prints."""

NAMES = tuple(_MODULES)


def experiment_of(name: str) -> Experiment:
    """Raises `ConfigError` for an unknown name."""
    if name not in _MODULES:
        raise ConfigError("NAME", f"must be one of {', '.join(NAMES)}, not {name!r}")
    module = importlib.import_module(f"sluiceway_lab.experiments.{_MODULES[name]}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def experiments() -> Iterator[Experiment]:
    yield from map(experiment_of, NAMES)
