"""The sets of native kernels by name, and arguments for their functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from sluiceway.model.kernels.binding import Kernels, Pool
from sluiceway.model.kernels.loader import all_kernels, pool

SETS = ["plain", "avx2", "avx512", "amx"]

FloatArray = npt.NDArray[np.float32]


def kernel_set(name: str) -> Kernels:
    """The kernel set of this name. Skips the test if the processor cannot run it, or if no kernels were built."""
    try:
        sets = {kernels.name.decode(): kernels for kernels in all_kernels()}
    except OSError as error:
        pytest.skip(str(error))
    if name not in sets:
        pytest.skip(f"this processor does not run {name}")
    return sets[name]


def pools() -> list[Pool]:
    """The calling thread alone, and more threads than there may be cores."""
    return [pool(1), pool(3)]


def random_floats(*shape: int, seed: int = 0, scale: float = 1.0) -> FloatArray:
    return (np.random.default_rng(seed).normal(0, scale, shape)).astype(np.float32)


def rounded(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """To the nearest bf16, as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return kept.view(np.float32).astype(np.float64)


@contextmanager
def chosen(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Models that are loaded during the `with` compute with this set."""
    from sluiceway.model import weight_format

    kernels = kernel_set(name)
    monkeypatch.setattr(weight_format, "best_kernels", lambda: kernels)
    yield
