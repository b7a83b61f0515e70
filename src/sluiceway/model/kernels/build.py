"""Compiles the kernels, one set for each instruction set, into one library. It needs g++ or clang++.

`setup.py` calls this at installation, also at an editable one. It imports only the standard library, so that it runs
before the package is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
LIBRARY = Path(__file__).parent / "libsluiceway_kernels.so"

_FLAGS = "-std=c++17 -O3 -fPIC -fvisibility=hidden -fno-exceptions -fno-math-errno -fno-trapping-math -Wall -Wno-psabi"
_AVX512 = "-march=x86-64-v4 -mavx512bf16 -mavx512vnni -mprefer-vector-width=512"
_X86_SETS = {
    "avx2": "-mavx2 -mfma",
    "avx512": _AVX512,
    "amx": f"{_AVX512} -mamx-tile -mamx-bf16 -mamx-int8",
}


def digest() -> str:
    """The digest of all sources, by which a library says what it was made from."""
    state = hashlib.sha256()
    for path in (*sorted(SOURCES.iterdir()), Path(__file__)):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def compile_library(target: Path) -> None:
    """Compile. Raises `OSError` without a compiler, `subprocess.CalledProcessError` (with its output) if it fails."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [("library", "library.cpp", f'-DSLUICEWAY_DIGEST="{digest()}"')]
        for name, flags in {"plain": "", **(_X86_SETS if _is_x86() else {})}.items():
            jobs.append((name, "variant.cpp", f"{flags} -DSLUICEWAY_VARIANT={name}"))
        commands = [
            [*compiler, *_FLAGS.split(), *flags.split(), "-c", str(SOURCES / source), "-o", f"{scratch}/{name}.o"]
            for name, source, flags in jobs
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        linked = Path(scratch) / target.name
        _run([*compiler, "-shared", *(f"{scratch}/{name}.o" for name, _, _ in jobs), "-o", str(linked), "-lm"])
        target.parent.mkdir(parents=True, exist_ok=True)
        # By renaming: a process that has the old library mapped keeps it whole.
        temporary = target.with_suffix(".new")
        shutil.copyfile(linked, temporary)
        temporary.replace(target)


def _compiler() -> list[str]:
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise OSError("no C++ compiler: neither g++ nor clang++ is there, and CXX is not set")


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
