"""Finds the compiled kernels, and the thread pool of torch that they use."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import structlog
import torch

from sluiceway.model.kernels.binding import Kernels, Pool, kernel_sets
from sluiceway.model.kernels.build import LIBRARY, digest

_CHOICE = "SLUICEWAY_KERNELS"
"""The variable that names a set (`plain`, `avx2`, `avx512`, `amx`), or `none` for torch alone."""


@functools.cache
def best_kernels() -> Kernels | None:
    """Return the kernel set that the environment names, or else the best for this processor; None: torch computes."""
    log = structlog.get_logger("kernels")
    choice = os.environ.get(_CHOICE, "")
    if choice == "none":
        return None
    try:
        sets = all_kernels()
    except OSError as error:
        log.warning("no native kernels, torch computes everything, slower", cause=str(error))
        return None
    for kernels in sets:
        if choice in ("", kernels.name.decode()):
            return kernels
    log.warning(
        "the kernel set that was asked for is not available, torch computes everything, slower", asked_for=choice
    )
    return None


@functools.cache
def all_kernels() -> list[Kernels]:
    """All sets that this processor runs, the best first. Raises `OSError` if the library is missing or outdated."""
    if not LIBRARY.exists():
        raise OSError(f"{LIBRARY.name} was not built: at installation there was no working C++ compiler")
    library = ctypes.CDLL(str(LIBRARY))
    library.sluiceway_digest.restype = ctypes.c_char_p
    if library.sluiceway_digest().decode() != digest():
        raise OSError(f"{LIBRARY.name} was built from other sources: install the package again")
    return kernel_sets(library)


def pool(n_threads: int) -> Pool:
    """The threads of the OpenMP runtime that torch uses. Without one, only the calling thread computes."""
    parallel = gomp_parallel()
    return Pool(parallel, n_threads if parallel else 1)


@functools.cache
def gomp_parallel() -> int | None:
    for path in openmp_candidates():
        try:
            function = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value
    return None


def openmp_candidates() -> list[Path]:
    """The OpenMP runtimes that this process has loaded. A further one would start threads that compete with torch's."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    near_torch = Path(torch.__file__).parent.parent
    found = [path for path in paths if "omp" in path.name and ".so" in path.name]
    return sorted(found, key=lambda path: (near_torch not in path.parents, path))
