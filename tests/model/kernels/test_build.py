"""The build of the kernels with a compiler, without one, and with one that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluiceway.model.kernels import build
from sluiceway.model.kernels.build import compile_library, digest


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_change_of_any_source_changes_the_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So the loader detects a library of other sources."""
    before = digest()
    for source in build.SOURCES.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    assert digest() == before
    with (tmp_path / "abi.h").open("a") as file:
        file.write("\n")
    assert digest() != before


def test_every_set_is_compiled_and_linked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compiler of the test records its arguments. The library appears complete, in one rename."""
    fake = script(
        tmp_path / "cxx", f'echo "$@" >> {tmp_path}/log\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"'
    )
    monkeypatch.setenv("CXX", f"{fake} --fast")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    target = tmp_path / "new" / "kernels.so"
    compile_library(target)
    assert target.read_text() == "made\n"
    asked = (tmp_path / "log").read_text().splitlines()
    assert len(asked) == 6 and all(line.startswith("--fast") for line in asked)
    for name in ("plain", "avx2", "avx512", "amx"):
        assert sum(f"-DSLUICEWAY_VARIANT={name}" in line for line in asked) == 1
    assert sum("-shared" in line for line in asked) == 1
    assert list(target.parent.iterdir()) == [target]


def test_other_processors_get_the_plain_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compiler gets no flag of x86."""
    fake = script(
        tmp_path / "cxx", f'echo "$@" >> {tmp_path}/log\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"'
    )
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    compile_library(tmp_path / "kernels.so")
    asked = (tmp_path / "log").read_text()
    assert "-DSLUICEWAY_VARIANT=plain" in asked
    assert "-mavx" not in asked and "-march" not in asked


def test_a_missing_compiler_has_its_own_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The installation goes on after it."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="no C\\+\\+ compiler"):
        compile_library(tmp_path / "kernels.so")


def test_the_error_of_a_failing_compiler_has_its_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It leaves no file."""
    monkeypatch.setenv("CXX", str(script(tmp_path / "cxx", "echo too old >&2; exit 1")))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_library(tmp_path / "kernels.so")
    assert "too old" in caught.value.stderr
    assert not (tmp_path / "kernels.so").exists()


def test_the_compiler_of_the_system_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """g++ comes before clang++."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang++", "g++"):
        script(tmp_path / name, f"echo {name} >&2; exit 1")
        with pytest.raises(subprocess.CalledProcessError) as caught:
            compile_library(tmp_path / "kernels.so")
        assert caught.value.stderr == f"{name}\n"
