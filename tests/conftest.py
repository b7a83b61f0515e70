"""Settings for all tests, so that they run in the same way everywhere."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A job in the background of a shell starts with SIGINT ignored, and its children inherit that; tests that press Ctrl-C
# need the usual meaning. This module is imported in the main thread, before any of them starts a process.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No check may depend on the speed of the machine: examples have no deadline, and drawing them may take long. The first
# draw of text on a fresh clone builds tables of Unicode, which takes seconds on a slow machine.
settings.register_profile(
    "sluiceway", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("sluiceway")
