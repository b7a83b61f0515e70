"""What an experiment works with: servers, runs, verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ConfigError
from sluiceway_lab.experiments import experiment
from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.experiments.readers import WHOLE, Habit, Reading, read
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.session import OwnServer, RunningServer
from support.labs import lab_of
from support.records import run
from support.scripted_http import completion_stream, plain, scripted_server

ROUTES = {"/v1/models": [plain(200, b'{"data":[{"id":"m"}]}')], "/v1/completions": completion_stream(1)}


def test_run_is_recorded_and_reported() -> None:
    lines: list[str] = []
    lab = lab_of(say=lines.append)
    lab.note("s", "a", {"took_s": 1.23456789}, streams=2)
    lab.note("s", "b", {}, repeat=1, errors=["it broke", "again"])
    assert lab.runs[0].figures == {"took_s": 1.23457}
    assert lines == ["s, a 2, repeat 0", "s, b, repeat 1: 2 failed (it broke)"]


def test_figures_are_those_of_the_runs_that_have_them() -> None:
    lab = lab_of(run("s", "a", 1, x=1.0), run("s", "a", 2, x=2.0), run("t", "a", 1, x=3.0), run("s", "b", 1, x=4.0))
    lab.note("s", "a", {"y": 5.0}, streams=1)
    assert lab.figures("x", "a") == [1.0, 2.0, 3.0]
    assert lab.figures("x", "a", 1) == [1.0, 3.0]
    assert lab.figures("x", "a", 1, server="s") == [1.0]


def test_times_are_not_judged_in_a_smoke_run() -> None:
    assert lab_of().timed("quick", False, "9 s") == Verdict("quick", False, "9 s")
    assert lab_of(is_smoke=True).timed("quick", True, "9 s") == Verdict("quick", None, "9 s")


async def test_server_that_runs_already_is_met() -> None:
    async with scripted_server(dict(ROUTES)) as script:
        lab = lab_of(first=RunningServer(target=script.target))
        for _ in range(2):
            async with lab.server() as server:
                assert (server.model, server.target) == ("m", script.target)
        assert not lab.is_own and [(one.url, one.serve_flags) for one in lab.servers] == [(script.target.url, None)]


async def test_server_that_runs_already_takes_no_flags() -> None:
    with pytest.raises(ConfigError, match="^url: this experiment must start its server itself, with --dtype int8"):
        async with lab_of().server("--dtype", "int8"):
            pass


async def test_own_server_is_started_with_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags of the experiment come last, so that they win."""
    events: list[object] = []

    class Started:
        pid = os.getpid()

        def __init__(self, target: Target) -> None:
            self.target = target

        async def ready(self) -> float:
            events.append("ready")
            return 0.0

    async with scripted_server(dict(ROUTES)) as script:

        @contextlib.contextmanager
        def own_server(model: str, flags: Sequence[str]) -> Iterator[Started]:
            events.extend([model, flags[-3:]])
            yield Started(script.target)
            events.append("ended")

        monkeypatch.setattr(experiment, "own_server", own_server)
        files = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")
        lab = lab_of(first=OwnServer(files=files, flags=("--quiet",)))
        async with lab.server("--dtype", "int8", name="exact") as server:
            assert lab.is_own and server.name == "exact"
    assert events == ["fake", ["--quiet", "--dtype", "int8"], "ready", "ended"]
    assert [(one.name, (one.serve_flags or [])[-2:]) for one in lab.servers] == [("exact", ["--dtype", "int8"])]


FAKE = OwnServer(files=ModelFiles(kind=ModelKind.FAKE, path="", name="fake"))


def test_events_are_longer_and_the_record_stays_short() -> None:
    lab = Lab(first=FAKE, is_smoke=True, seed=0, say=lambda line: None)

    async def asked() -> Reading:
        async with lab.server("--max-running", "2", pad_bytes=5000) as server:
            return await read(server.target, server.request("once", 4), Habit())

    reading = asyncio.run(asked())
    assert (reading.end, reading.n_tokens) == (WHOLE, 4)
    assert reading.n_bytes > 4 * 5000
    (facts,) = lab.servers
    assert facts.model == "fake"
    assert facts.serve_flags is not None and facts.serve_flags[-2:] == ["--max-running", "2"]


def test_running_server_takes_no_padding() -> None:
    lab = Lab(first=RunningServer(target=Target("127.0.0.1", 1)), is_smoke=True, seed=0, say=lambda line: None)

    async def asked() -> None:
        async with lab.server(pad_bytes=5000):
            raise AssertionError("it was not refused")

    with pytest.raises(ConfigError, match="must start its server itself"):
        asyncio.run(asked())
