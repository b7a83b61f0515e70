"""A process that ends ignores signals without a gap."""

from __future__ import annotations

import subprocess
import sys

SENDER = "import os, sys\nwhile True: os.kill(int(sys.argv[1]), 15)"
ENDS_UNDER_SIGNALS = f"""
import os, signal, subprocess, sys
from sluiceway.runtime.signals import ignore_signals

ignore_signals([signal.SIGTERM])
command = [sys.executable, "-c", {SENDER!r}, str(os.getpid())]
subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for _ in range(3_000):
    signal.signal(signal.SIGTERM, lambda *_: None)
    ignore_signals([signal.SIGTERM])
"""


def test_signals_are_ignored_without_a_gap() -> None:
    """A second process sends the signal until the first has ended. With `signal.signal` alone, errors are printed."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", ENDS_UNDER_SIGNALS], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
