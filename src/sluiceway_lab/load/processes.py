"""Starts servers for a measurement, measures what their processes use, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO

import psutil

from sluiceway_lab.load.client import LoadError, Target, get

START_S = 180.0
"""A large model on a slow disk may take minutes to load."""
STOP_S = 60.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process uses, or several with the same name.

    `pss_bytes` divides shared memory among its processes, so it can be summed up. Processor time is counted in
    hundredths of a second, threads that have ended included.
    """

    cpu_s: float = 0.0
    rss_bytes: int = 0
    pss_bytes: int = 0

    def __add__(self, other: ProcessUsage) -> ProcessUsage:
        return ProcessUsage(
            self.cpu_s + other.cpu_s, self.rss_bytes + other.rss_bytes, self.pss_bytes + other.pss_bytes
        )


def usage(pid: int) -> ProcessUsage | None:
    """Return None if the process has ended, or belongs to another user."""
    try:
        process = psutil.Process(pid)
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
    descendants = family(process.pid)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        for pid in descendants:
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()
        process.wait()


class StartedProcess:
    """A process that was started by `started`. It writes to a log."""

    def __init__(self, command: Sequence[str], log: IO[bytes]) -> None:
        self._started_s = time.perf_counter()
        self._log = log
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self._started_s

    def log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()


@contextlib.contextmanager
def started(command: Sequence[str], stop_s: float = STOP_S) -> Iterator[StartedProcess]:
    """Run a program for the length of the block."""
    with tempfile.TemporaryFile() as log:
        one = StartedProcess(command, log)
        try:
            yield one
        finally:
            stop(one.process, stop_s)


@dataclass(frozen=True, slots=True)
class StartedServer:
    """A server that was started for a measurement. Its process is the supervisor."""

    started: StartedProcess
    target: Target

    @property
    def pid(self) -> int:
        return self.started.process.pid

    async def ready(self, limit_s: float = START_S) -> float:
        """Wait until it serves, and return the seconds since its start.

        Raises `LoadError` if it ends before, or takes too long.
        """
        while not await self._is_ready():
            if (code := self.started.process.poll()) is not None:
                raise LoadError(f"the server ended with {code} before it served:\n{self.started.log_tail()}")
            if self.started.age_s > limit_s:
                raise LoadError(f"the server does not serve after {limit_s:g} s:\n{self.started.log_tail()}")
            await asyncio.sleep(_POLL_S)
        return self.started.age_s

    async def _is_ready(self) -> bool:
        try:
            return (await get(self.target, "/health/ready")).status == 200
        except LoadError:
            return False


def own_server(model: str, flags: Sequence[str] = ()) -> AbstractContextManager[StartedServer]:
    """Run a server on a free port of this machine for the length of the block.

    Meanwhile SIGTERM raises `SystemExit` in this process, so that it leaves no server behind. Works only in the main
    thread.
    """
    port = free_port()
    return _served(port, "sluiceway", "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags)


def front_server(kind: str, upstream: Target) -> AbstractContextManager[StartedServer]:
    """Run one of `fronts` in front of a server, in the same way."""
    port = free_port()
    return _served(port, "sluiceway_lab.fronts", kind, upstream.url, str(port))


@contextlib.contextmanager
def _served(port: int, module: str, *arguments: str) -> Iterator[StartedServer]:
    with _termination_raises(), started([sys.executable, "-m", module, *arguments]) as one:
        yield StartedServer(one, Target("127.0.0.1", port))


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
