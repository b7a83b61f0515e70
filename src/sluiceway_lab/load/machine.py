"""Describes where a measurement was made (the machine, the versions, the commit), and what the machine can do.

`python -m sluiceway_lab.load.machine '{"threads": 2, ...}'` measures the floor with torch, and prints the result as
JSON. It is a separate process, so that torch's threads and memory do not disturb the measurement of a server.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

import sluiceway
from sluiceway.config import Dtype, ModelFiles
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Floor, Host, Record, Run, Weights, summarize

if TYPE_CHECKING:
    import torch

_PACKAGES = "torch numpy tokenizers fastapi starlette uvicorn uvloop httptools pyzmq msgspec".split()
_TRIES = 12
_ENOUGH_S = 10.0
"""After this time there are no more tries: a machine without bfloat16 instructions may need minutes for all."""
_READ_BYTES = 512 * 1024 * 1024
"""Far more than the processor's caches hold."""
_MATRIX = 2048


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
        """Make the record. `fields` are its other fields, which have defaults."""
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


class FloorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `threads` 0 means one for each core. Without files, no model is described."""

    threads: int = 0
    dtype: Dtype = "auto"
    files: ModelFiles | None = None


class MachineFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The floor, and what a step of the model reads; None if it was not measured."""

    floor: Floor | None = None
    weights: Weights | None = None


def measure_floor(question: FloorRequest) -> MachineFloor:
    """Measure in another process. Takes seconds. Raises `LoadError` with the last line of its error output."""
    command = [sys.executable, "-m", "sluiceway_lab.load.machine", msgspec.json.encode(question).decode()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LoadError(f"the machine's floor cannot be measured: {reason}")
    return msgspec.json.decode(done.stdout, type=MachineFloor)


def floor_here(question: FloorRequest) -> MachineFloor:
    """Measure in this process. Loads torch."""
    import torch

    threads = question.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = None if question.files is None else _weights(question.files, question.dtype, device)
    floor = Floor(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        threads=threads,
        memory_gb_per_s=_memory_gb_per_s(device),
        bfloat16_gflop_per_s=_gflop_per_s(device, torch.bfloat16),
        float32_gflop_per_s=_gflop_per_s(device, torch.float32),
    )
    return MachineFloor(floor=floor, weights=weights)


def weights_of(
    shapes: Mapping[str, Sequence[int]], *, embedding: str, is_tied: bool, dtype: str, width: int
) -> Weights:
    """Return what a step reads: the whole model, but only single rows of an embedding that is not the head."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    parameters = sum(sizes.values()) - (0 if is_tied else sizes[embedding])
    return Weights(dtype=dtype, parameters=parameters, head_parameters=sizes[embedding], step_bytes=parameters * width)


def _weights(files: ModelFiles, dtype: Dtype, device: torch.device) -> Weights:
    from sluiceway.model.checkpoint import EMBEDDING, expected_shapes
    from sluiceway.model.load import open_checkpoint
    from sluiceway.model.weight_format import resolve_dtype

    _, config = open_checkpoint(files)
    resolved = resolve_dtype(dtype, device)
    return weights_of(
        expected_shapes(config),
        embedding=EMBEDDING,
        is_tied=config.is_tied,
        dtype=str(resolved).removeprefix("torch."),
        width=resolved.itemsize,
    )


def _memory_gb_per_s(device: torch.device) -> float:
    import torch

    values = torch.ones(_READ_BYTES // 4, device=device)
    return _READ_BYTES / _best_s(lambda: torch.dot(values, values).item()) / 1e9


def _gflop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    import torch

    left, right = (torch.randn(_MATRIX, _MATRIX, device=device).to(dtype) for _ in range(2))
    return 2 * _MATRIX**3 / _best_s(lambda: (left @ right)[0, 0].item()) / 1e9


def _best_s(work: Callable[[], object]) -> float:
    """Return the least time of several tries, after a warm-up.

    `work` ends by fetching a number, so that a GPU has finished.
    """
    durations: list[float] = []
    while len(durations) <= _TRIES and sum(durations) < _ENOUGH_S:
        started_s = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started_s)
    return min(durations[1:] or durations)


if __name__ == "__main__":
    ground = floor_here(msgspec.json.decode(sys.argv[1], type=FloorRequest))
    sys.stdout.write(msgspec.json.encode(ground).decode())
