"""Starting and stopping a real server with the fake model."""

from __future__ import annotations

import os
import signal

import pytest

from sluiceway_lab.load.client import LoadError, get
from sluiceway_lab.load.own_server import own_server
from sluiceway_lab.load.processes import family


@pytest.mark.e2e
async def test_server_serves_and_leaves_nothing_behind() -> None:
    with own_server("fake", ["--max-running", "3"]) as server:
        assert await server.ready() > 0
        assert (await get(server.target, "/health/ready")).status == 200
        pids = family(server.pid)
        assert len(pids) >= 4
    assert not family(server.pid)
    with pytest.raises(LoadError):
        await get(server.target, "/health/ready")


async def test_server_that_ends_before_it_serves_says_why() -> None:
    with own_server("fake", ["--max-running", "0"]) as server:
        with pytest.raises(LoadError, match=r"ended with 2 before it served:\nerror: --max-running: must be"):
            await server.ready()


async def test_server_that_takes_too_long_is_given_up() -> None:
    with own_server("fake") as server:
        with pytest.raises(LoadError, match="does not serve after 0 s"):
            await server.ready(limit_s=0)
    assert not family(server.pid)


def test_server_is_stopped_when_this_process_gets_sigterm() -> None:
    with pytest.raises(SystemExit) as left:
        with own_server("fake") as server:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    assert left.value.code == 143
    assert not family(server.pid)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
