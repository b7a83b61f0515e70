"""Measures with torch what the machine can do, and computes what a step of a model needs.

`python -m sluiceway_lab.load.floor '{"threads": 2, ...}'` prints the result as JSON. It is a separate process, so that
torch's threads and memory do not disturb the measurement of a server.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluiceway.config import Dtype, ModelFiles
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Floor, Weights

if TYPE_CHECKING:
    import torch

_TRIES = 12
_READ_BYTES = 512 * 1024 * 1024
"""Far more than the processor's caches hold."""
_MATRIX = 2048


class FloorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `threads` 0 means one for each core. Without files, no model is described."""

    threads: int = 0
    dtype: Dtype = "auto"
    files: ModelFiles | None = None


class MachineFloor(msgspec.Struct, frozen=True, kw_only=True):
    floor: Floor
    weights: Weights | None


def ask(question: FloorRequest) -> MachineFloor:
    """Measure in another process. Takes seconds. Raises `LoadError` with the last line of its error output."""
    command = [sys.executable, "-m", "sluiceway_lab.load.floor", msgspec.json.encode(question).decode()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LoadError(f"the machine's floor cannot be measured: {reason}")
    return msgspec.json.decode(done.stdout, type=MachineFloor)


def answer(question: FloorRequest) -> MachineFloor:
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
    durations = []
    for _ in range(_TRIES + 1):
        started_s = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started_s)
    return min(durations[1:])


if __name__ == "__main__":
    ground = answer(msgspec.json.decode(sys.argv[1], type=FloorRequest))
    sys.stdout.write(msgspec.json.encode(ground).decode())
