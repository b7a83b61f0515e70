"""`scripts/trace_calls` runs, and counts the same calls each time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from support.mirror import ROOT

pytestmark = pytest.mark.e2e


def trace(*options: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "trace_calls"), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_span_of_a_stream_is_counted() -> None:
    counts = re.findall(r"^(\w+) +\d+ calls in \d+ files", trace(), re.MULTILINE)
    assert counts == ["request", "token", "end"]


def test_the_walk_of_a_disconnect_reaches_the_engine_and_comes_back() -> None:
    walk = [line.split() for line in trace("--walk", "disconnect").splitlines()]
    processes = [process for process, _ in walk]
    assert walk[0] == ["api", "api/http/protocol.py:WatchfulProtocol.connection_lost"]
    assert list(dict.fromkeys(processes)) == ["api", "tokenizer", "engine"]
    assert "api" in processes[processes.index("engine") :]
