"""The structs of ctypes are equal to those of the compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from sluiceway.model.kernels import binding
from sluiceway.model.kernels.binding import kernel_sets
from sluiceway.model.kernels.build import LIBRARY, SOURCES
from support.native import kernel_set

STRUCTS = ["Product", "Layer", "Model", "Cache", "Rows", "Step", "SamplingRow", "LogprobsRow", "Pool", "Kernels"]


def test_every_field_lies_where_the_compiler_puts_it(tmp_path: Path) -> None:
    """A program prints the offsets of all fields of all structs."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no compiler")
    asked = [(name, field[0]) for name in STRUCTS for field in getattr(binding, name)._fields_]
    lines = [f'printf("%zu ", offsetof({name}, {field}));' for name, field in asked]
    lines += [f'printf("%zu ", sizeof({name}));' for name in STRUCTS]
    source = tmp_path / "offsets.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{SOURCES}/abi.h"\nint main() {{ {" ".join(lines)} }}\n'
    )
    subprocess.run([compiler, str(source), "-o", str(tmp_path / "offsets")], check=True)
    printed = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True).stdout.split()
    ours = [getattr(getattr(binding, name), field).offset for name, field in asked]
    ours += [ctypes.sizeof(getattr(binding, name)) for name in STRUCTS]
    assert list(map(int, printed)) == ours


def test_the_library_lists_its_sets() -> None:
    """Each set has a name, and `plain` is always in the list."""
    kernel_set("plain")
    assert b"plain" in [kernels.name for kernels in kernel_sets(ctypes.CDLL(str(LIBRARY)))]
