"""Where the program begins. What takes time to import comes after the handlers of signals, and all of it does."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Runs the command line of this process and exits."""
    if sys.argv[1:2] == ["serve"]:
        leave_in_order_when_signalled()
    _replace_closed_streams()
    from sluiceway.cli.app import app

    app()


def _replace_closed_streams() -> None:
    """What Python found closed (`<&-`, a service without a terminal) is empty, or goes nowhere."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def leave_in_order_when_signalled() -> None:
    """From its first moment to its last a server that gets a signal to stop leaves with exit code 0.

    The supervisor puts handlers of its own in the place of these.
    """
    for number in _SIGNALS:
        signal.signal(number, _leave)
    atexit.register(_ignore)  # the interpreter resets handlers when it ends, but leaves what is ignored


def _leave(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, _leave_now)
    sys.exit(0)


def _leave_now(number: int, frame: FrameType | None) -> None:
    """Again, while the first still tidies up."""
    os._exit(0)


def _ignore() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
