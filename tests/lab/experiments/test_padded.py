"""Events as long as one likes, on a real server."""

from __future__ import annotations

import asyncio

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.experiments.padded import padded_server
from sluiceway_lab.experiments.readers import WHOLE, Habit, Reading, read
from sluiceway_lab.load.calls import Target
from sluiceway_lab.session import OwnServer, RunningServer

FAKE = OwnServer(files=ModelFiles(kind=ModelKind.FAKE, path="", name="fake"))


def test_events_are_longer_and_the_record_stays_short() -> None:
    """Each of them names the model; whoever reads the record wants its own name."""
    lab = Lab(first=FAKE, is_smoke=True, seed=0, say=lambda line: None)

    async def asked() -> Reading:
        async with padded_server(lab, 5000, "--max-running", "2") as server:
            return await read(server.target, server.request("once", 4), Habit())

    reading = asyncio.run(asked())
    assert (reading.end, reading.n_tokens) == (WHOLE, 4)
    assert reading.n_bytes > 4 * 5000
    (facts,) = lab.servers
    assert facts.model == "fake"
    assert facts.serve_flags is not None and facts.serve_flags[-2:] == ["--max-running", "2"]


def test_server_that_runs_already_is_refused() -> None:
    """Its model has the name that it has."""
    lab = Lab(first=RunningServer(target=Target("127.0.0.1", 1)), is_smoke=True, seed=0, say=lambda line: None)

    async def asked() -> None:
        async with padded_server(lab, 5000):
            raise AssertionError("it was not refused")

    with pytest.raises(ConfigError, match="starts its servers itself"):
        asyncio.run(asked())
