"""Describes where a measurement was made: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import sluiceway
from sluiceway_lab.load.record import Host, Record, Run, summarize

_PACKAGES = (
    "torch",
    "numpy",
    "tokenizers",
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "pyzmq",
    "msgspec",
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement in progress: it knows when it began, and makes the record when it has ended."""

    started_at: datetime
    started_s: float
    load_before: float

    @classmethod
    def begin(cls) -> Measurement:
        return cls(datetime.now(UTC), time.perf_counter(), load())

    def record(
        self, experiment: str, command: Sequence[str], config: Mapping[str, Any], runs: Sequence[Run], **fields: Any
    ) -> Record:
        """`fields` are the other fields of the record; those that are left out have their usual values."""
        git_sha, is_dirty = sources()
        usual: dict[str, Any] = {"floor": None, "weights": None, "ratios": []}
        return Record(
            experiment=experiment,
            git_sha=git_sha,
            is_dirty=is_dirty,
            command=list(command),
            config=dict(config),
            host=describe_host(self.load_before),
            versions=versions(),
            started_at=self.started_at.isoformat(timespec="seconds"),
            duration_s=round(time.perf_counter() - self.started_s, 3),
            runs=list(runs),
            summary=summarize(runs),
            **usual | fields,
        )


def describe_host(load_before: float) -> Host:
    return Host(
        name=platform.node(),
        platform=platform.platform(),
        cpu=cpu_name(Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpu=first_line(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]),
        load_before=load_before,
        load_after=load(),
    )


def load() -> float:
    """Return the load average of the last minute."""
    return psutil.getloadavg()[0]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sluiceway": sluiceway.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def sources(directory: Path = Path(sluiceway.__file__).parent) -> tuple[str | None, bool | None]:
    """Return the commit that this package runs from, and whether files changed since. None outside a checkout."""
    git = ["git", "-C", str(directory)]
    if first_line([*git, "ls-files", "--error-unmatch", "__init__.py"]) is None:
        return None, None
    return first_line([*git, "rev-parse", "HEAD"]), first_line([*git, "status", "--porcelain"]) is not None


def first_line(command: list[str]) -> str | None:
    """Return the first line of output; None if the program is missing, fails, or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0] or None if done.returncode == 0 else None


def cpu_name(file: Path) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
