"""Starts a `sluiceway serve` for a measurement, and stops it."""

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
from typing import IO

from sluiceway_lab.load.client import LoadError, Target, get
from sluiceway_lab.load.processes import stop

START_S = 180.0
"""A large model on a slow disk may take minutes to load."""
STOP_S = 60.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


class StartedServer:
    """A server that was started by `own_server`. `pid` is its supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], target: Target, log: IO[bytes], started_s: float) -> None:
        self._process = process
        self._log = log
        self._started_s = started_s
        self.target = target

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, limit_s: float = START_S) -> float:
        """Wait until it serves, and return the seconds since its start.

        Raises `LoadError` if it ends before, or takes too long.
        """
        while not await self._is_ready():
            if (code := self._process.poll()) is not None:
                raise LoadError(f"the server ended with {code} before it served:\n{self._log_tail()}")
            if time.perf_counter() - self._started_s > limit_s:
                raise LoadError(f"the server does not serve after {limit_s:g} s:\n{self._log_tail()}")
            await asyncio.sleep(_POLL_S)
        return time.perf_counter() - self._started_s

    async def _is_ready(self) -> bool:
        try:
            return (await get(self.target, "/health/ready")).status == 200
        except LoadError:
            return False

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip()


@contextlib.contextmanager
def own_server(model: str, flags: Sequence[str] = ()) -> Iterator[StartedServer]:
    """Run a server on a free port of this machine for the length of the block.

    Meanwhile SIGTERM raises `SystemExit` in this process, so that it leaves no server behind. Works only in the main
    thread.
    """
    port = free_port()
    with _started(["-m", "sluiceway", "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags], port) as one:
        yield one


@contextlib.contextmanager
def front_server(kind: str, upstream: Target) -> Iterator[StartedServer]:
    """Run one of `fronts` in front of a server, in the same way."""
    port = free_port()
    with _started(["-m", "sluiceway_lab.fronts", kind, upstream.url, str(port)], port) as one:
        yield one


@contextlib.contextmanager
def _started(arguments: Sequence[str], port: int) -> Iterator[StartedServer]:
    command = [sys.executable, *arguments]
    with tempfile.TemporaryFile() as log, _termination_raises():
        started_s = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield StartedServer(process, Target("127.0.0.1", port), log, started_s)
        finally:
            stop(process, STOP_S)


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
