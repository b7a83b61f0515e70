"""What processes use, out of /proc (where there is none, nothing is known and nothing is reported); and their end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_NAME_LENGTH = 15
_ABSENT = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """`pss_bytes` divides what several processes share among them, so that it can be added up."""

    cpu_s: float
    rss_bytes: int
    pss_bytes: int


def usage(pid: int) -> ProcessUsage | None:
    """None for a process that is not there, or that is not ours to look at."""
    process = _PROC / str(pid)
    try:
        memory = (process / "smaps_rollup").read_text()
        return ProcessUsage(_cpu_s(process), _kilobytes(memory, "Rss"), _kilobytes(memory, "Pss"))
    except _ABSENT:
        return None


def family(pid: int) -> dict[int, str]:
    """This process and all below it: their names by id."""
    parents, names = {}, {}
    for entry in _PROC.glob("[0-9]*"):
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except _ABSENT:
            continue
        number = int(entry.name)
        parents[number], names[number] = int(tail.split()[1]), head.partition("(")[2]
    found: dict[int, str] = {}
    frontier = {pid} & names.keys()
    while frontier:
        found |= {number: _whole_name(number, names[number]) for number in frontier}
        frontier = {number for number, parent in parents.items() if parent in frontier} - found.keys()
    return found


def stop(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """As a person would, and by force where that is not enough: then with all that it has started, as far as seen."""
    below = family(process.pid)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _whole_name(pid: int, name: str) -> str:
    """The kernel cuts names off; a process that has chosen its own has it whole in place of its command."""
    if len(name) < _NAME_LENGTH:
        return name
    try:
        said = (_PROC / str(pid) / "cmdline").read_text(errors="replace")
    except _ABSENT:
        return name
    title = said.partition("\0")[0].strip().rpartition("/")[2]
    return title if title.startswith(name) else name


def _cpu_s(process: Path) -> float:
    """Of all its threads. Those that live are counted in nanoseconds, all that there were in hundredths of a second.

    The greater of both: the fine clock forgets threads that have ended, the coarse one rounds down.
    """
    fine_ns = sum(_spent_ns(task) or 0 for task in (process / "task").iterdir())
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return max(fine_ns / 1e9, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _spent_ns(task: Path) -> int | None:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except _ABSENT:
        return None


def _kilobytes(memory: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", memory, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
