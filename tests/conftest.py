"""What every test may rely on, wherever it is run."""

from __future__ import annotations

import signal

# A job in the background of a shell starts with SIGINT ignored, and its children inherit that; tests that press Ctrl-C
# need the usual meaning. This module is imported in the main thread, before any of them starts a process.
signal.signal(signal.SIGINT, signal.default_int_handler)
