"""The delivery process, with readers that read and with one that stops."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sluiceway.sse.decoder import EventDecoder
from sluiceway_lab.load.client import LoadError, dial
from sluiceway_lab.load.held import FormatTime
from sluiceway_lab.load.way_out import Spent, WayOutConfig, WriteBacklog, way_out

pytestmark = pytest.mark.e2e

SMALL = WayOutConfig(format_time="when made", spoken="completions", model="m", n_readers=2, n_tokens=30, waits=True)
LONG = WayOutConfig(format_time="when written", spoken="completions", model="x" * 32_768, n_readers=1, n_tokens=30)


async def whole(question: WayOutConfig, *, waits_for_backlog: bool = False) -> tuple[WriteBacklog, Spent, list[bytes]]:
    """The two reports of the process, and what each reader received."""
    async with way_out(question) as server:
        begin = asyncio.Event()

        async def read() -> bytes:
            async with dial(server.target, is_narrow=True) as connection:
                if waits_for_backlog:
                    connection.stall()
                    await begin.wait()
                    connection.resume()
                return await connection.read_rest(10)

        readers = [asyncio.create_task(read()) for _ in range(question.n_readers)]
        backlog = await server.backlog()
        begin.set()
        spent = await server.spent()
        return backlog, spent, await asyncio.gather(*readers)


async def test_every_reader_gets_every_token() -> None:
    backlog, spent, bodies = await whole(SMALL)
    assert [len(list(EventDecoder().feed(body))) for body in bodies] == [30, 30]
    assert backlog.n_events == 0
    assert spent.n_events == 60 and spent.cpu_s > 0


@pytest.mark.parametrize("way", ["when made", "when written"])
async def test_backlog_is_what_a_stopped_reader_has_not_received(way: FormatTime) -> None:
    """A megabyte of events waits in one form, and almost nothing in the other."""
    question = WayOutConfig(format_time=way, spoken="completions", model=LONG.model, n_readers=1, n_tokens=30)
    backlog, spent, (body,) = await whole(question, waits_for_backlog=True)
    assert 10 < backlog.n_events < 30
    assert (backlog.grown_bytes > backlog.n_events * 32_768 / 2) == (way == "when made")
    assert len(list(EventDecoder().feed(body))) == spent.n_events == 30


async def test_process_that_ends_says_why() -> None:
    unfit: Any = "two"
    with pytest.raises(LoadError, match="^the way out has ended: .*int"):
        async with way_out(msgspec.structs.replace(SMALL, n_readers=unfit)):
            raise AssertionError("it has started")
