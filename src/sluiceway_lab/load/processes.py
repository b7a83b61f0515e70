"""Measures what processes use, and stops them. psutil reads it from the operating system."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process uses. `pss_bytes` divides shared memory among its processes, so it can be summed up.

    Processor time is counted in hundredths of a second, threads that have ended included.
    """

    cpu_s: float
    rss_bytes: int
    pss_bytes: int


def usage(pid: int) -> ProcessUsage | None:
    """Return None if the process has ended, or belongs to another user."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu, memory = process.cpu_times(), process.memory_full_info()
    except (psutil.Error, ProcessLookupError):
        return None
    # Only Linux knows the proportional share.
    return ProcessUsage(cpu.user + cpu.system, memory.rss, getattr(memory, "pss", memory.uss))


def family(pid: int) -> dict[int, str]:
    """Return the names of a process and of all its descendants, by id."""
    names = {}
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                names[process.pid] = process.name()
    return names


def stop(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Send SIGTERM. If the process is still there after `patience_s`, kill it and its descendants."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        for descendant in descendants:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        process.kill()
        process.wait()
