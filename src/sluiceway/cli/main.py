"""The start of the program. It sets the signal handlers first, and then imports everything that takes time."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

from sluiceway.runtime.signals import ignore_signals

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run the command line of this process and exit."""
    if sys.argv[1:2] == ["serve"]:
        exit_in_order_on_signals()
    _replace_closed_streams()
    from sluiceway.cli.app import app

    app()


def _replace_closed_streams() -> None:
    """Replace closed standard streams (`<&-`, a service without a terminal) by /dev/null."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def exit_in_order_on_signals() -> None:
    """Let a server exit with code 0 when a signal stops it, from its first moment to its last.

    The supervisor replaces these handlers by its own.
    """
    for number in _SIGNALS:
        signal.signal(number, _exit)
    atexit.register(ignore_signals, _SIGNALS)


def _exit(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, _exit_now)
    sys.exit(0)


def _exit_now(number: int, frame: FrameType | None) -> None:
    """Exit when a second signal comes during the cleanup after the first."""
    os._exit(0)
