"""Jobs for worker processes that succeed, and jobs that fail in every possible way."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from sluiceway.runtime.worker import WorkFunction


class _Jobs:
    """Does jobs. The first word of a job says what to do; `echo` puts `init` before its answer."""

    def __init__(self, init: bytes) -> None:
        self._n_jobs = 0
        self._words: dict[bytes, Callable[[bytes], bytes]] = {
            b"echo": lambda rest: init + rest,
            b"pid": lambda _: b"%d" % os.getpid(),
            b"n": lambda _: b"%d" % self._n_jobs,
            b"nice": lambda _: b"%d" % os.nice(0),
            b"loop": _loop,
            b"hold": lambda _: b"%d" % max(range(10**12)),  # in C, with the interpreter's lock
            b"take": lambda rest: b"%d" % len(bytearray(int(rest))),
            b"die": _die,
            b"die_first": _die_first,
            b"wait": _wait,
        }

    def do(self, job: bytes) -> bytes:
        self._n_jobs += 1
        word, _, rest = job.partition(b" ")
        if word not in self._words:
            raise ValueError(word.decode())
        return self._words[word](rest)


def _die_first(path: bytes) -> bytes:
    """Count starts of the job in a file, and return their number. Die at the first one."""
    with open(path, "a+") as file:
        file.write("x")
        file.seek(0)
        n_starts = len(file.read())
    if n_starts == 1:
        os._exit(1)
    return b"%d" % n_starts


def build(init: bytes) -> WorkFunction:
    """The entry of a child that works."""
    return _Jobs(init).do


def build_none(init: bytes) -> WorkFunction:
    """The entry of a child that cannot start."""
    raise RuntimeError("no such thing")


def build_deaf(init: bytes) -> WorkFunction:
    """The entry of a child that adds a line to the file `init` when it starts, and dies before it takes a job."""
    with open(init, "a") as starts:
        starts.write("started\n")

    def die(*_: object) -> NoReturn:
        os._exit(1)

    socket.socket.recv_into = die  # type: ignore[assignment, method-assign]
    return _Jobs(init).do


def _loop(_: bytes) -> NoReturn:
    while True:
        pass


def _die(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def _wait(path: bytes) -> bytes:
    """Wait while another process has the file locked."""
    with open(path) as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    return b"waited"
