"""Describing where a measurement was made."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import sluiceway
from sluiceway_lab.load import machine
from sluiceway_lab.load.machine import describe_host, load, sources, versions


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    run = subprocess.run(["git", *identity, "-C", str(directory), *words], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_host_is_described() -> None:
    host = describe_host(0.25)
    assert (host.load_before, host.load_after) == (0.25, load())
    assert host.cores > 0 and host.memory_bytes > 1 << 20 and host.name and host.platform


def test_processor_is_named() -> None:
    assert machine.cpu_name(Path("/no/such/file")) == platform.processor()


def test_versions_are_those_that_are_installed() -> None:
    found = versions()
    assert found["sluiceway"] == sluiceway.__version__
    assert found["python"] == sys.version.split()[0] and "msgspec" in found


def test_sources_are_those_of_the_package(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert sources(package) == (None, None), "nothing is committed"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    sha = git(tmp_path, "rev-parse", "HEAD")
    assert sources(package) == (sha, False)
    (package / "__init__.py").write_text("changed = True\n")
    assert sources(package) == (sha, True)


def test_sources_are_unknown_when_the_package_is_only_installed(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    assert sources(tmp_path) == (None, None)


def test_program_that_is_not_there_says_nothing() -> None:
    assert machine.first_line(["no-such-program-at-all"]) is None
    assert machine.first_line([sys.executable, "-c", "print('x'); raise SystemExit(1)"]) is None
    assert machine.first_line([sys.executable, "-c", "print('x'); print('y')"]) == "x"
