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


def test_a_stream_takes_few_calls() -> None:
    """A change that adds calls raises these bounds, and says why."""
    spans = re.findall(r"^(\w+) +(\d+) calls in (\d+) files", trace(), re.MULTILINE)
    counts = {name: (int(n_calls), int(n_files)) for name, n_calls, n_files in spans}
    assert list(counts) == ["request", "token", "end"]
    assert counts["request"][1] <= 20
    assert counts["token"][0] <= 15
    assert counts["end"][0] <= 80


def test_the_walk_of_a_disconnect_reaches_the_engine_and_comes_back() -> None:
    walk = [line.split() for line in trace("--walk", "disconnect").splitlines()]
    processes = [process for process, _ in walk]
    assert walk[0] == ["api", "api/http/protocol.py:WatchfulProtocol.connection_lost"]
    assert list(dict.fromkeys(processes)) == ["api", "tokenizer", "engine"]
    assert "api" in processes[processes.index("engine") :]
