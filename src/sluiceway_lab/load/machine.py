"""Where a measurement was made, and with what: the machine, the versions, the state of the sources."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sluiceway
from sluiceway_lab.load.record import Host

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


def describe_host(load_before: float) -> Host:
    return Host(
        name=platform.node(),
        platform=platform.platform(),
        cpu=_cpu(Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpu=_first_line(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]),
        load_before=load_before,
        load_after=load(),
    )


def load() -> float:
    """Processes that run or want to, averaged over a minute."""
    return os.getloadavg()[0]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sluiceway": sluiceway.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def sources(directory: Path = Path(sluiceway.__file__).parent) -> tuple[str | None, bool | None]:
    """The commit that this package runs from, and whether something was changed since; None where there is none."""
    git = ["git", "-C", str(directory)]
    if _first_line([*git, "ls-files", "--error-unmatch", "__init__.py"]) is None:
        return None, None
    return _first_line([*git, "rev-parse", "HEAD"]), _first_line([*git, "status", "--porcelain"]) is not None


def _first_line(command: list[str]) -> str | None:
    """None where the program is not there, fails, or says nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0] or None if done.returncode == 0 else None


def _cpu(file: Path) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
