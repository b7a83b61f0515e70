"""Ignoring signals while a process ends."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterable

_libc = ctypes.CDLL(None)
_libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
_libc.signal.restype = ctypes.c_void_p


def ignore_signals(numbers: Iterable[int]) -> None:
    """Ignore these signals from now on, also while the interpreter ends. Call it in the main thread.

    The interpreter resets handlers when it ends, but leaves ignored signals ignored. `signal.signal(n, SIG_IGN)` alone
    has a gap: a signal that comes while that call replaces the handler is pending and finds no handler, and the
    interpreter prints a traceback. Here the handler stays in place until the kernel delivers no more of the signal.
    """
    for number in numbers:
        signal.signal(number, _do_nothing)
        _libc.signal(number, int(signal.SIG_IGN))
        signal.signal(number, signal.SIG_IGN)  # it first calls the handler for what is pending


def _do_nothing(*_: object) -> None: ...
