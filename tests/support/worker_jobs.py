"""Jobs for worker processes: what goes well, and every way in which it does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from sluiceway.runtime.worker import WorkFunction


class _Jobs:
    """Jobs begin with a word that says what happens. `init` is before what `echo` returns."""

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
            b"wait": _wait,
        }

    def do(self, job: bytes) -> bytes:
        self._n_jobs += 1
        word, _, rest = job.partition(b" ")
        if word not in self._words:
            raise ValueError(word.decode())
        return self._words[word](rest)


def build(init: bytes) -> WorkFunction:
    """What a child does its jobs with."""
    return _Jobs(init).do


def build_none(init: bytes) -> WorkFunction:
    """Fails while a child starts."""
    raise RuntimeError("no such thing")


def _loop(_: bytes) -> NoReturn:
    while True:
        pass


def _die(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def _wait(path: bytes) -> bytes:
    while os.path.exists(path):
        time.sleep(0.005)
    return b"waited"
