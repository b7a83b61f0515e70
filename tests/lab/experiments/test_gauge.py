"""A gauge, on a server that a test scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluiceway_lab.experiments import gauge as module
from sluiceway_lab.experiments.gauge import Gauge, is_released
from sluiceway_lab.load.client import LoadError, Target, dial
from support.scripted_http import plain
from support.target_servers import target_server

RELEASED = "sluiceway_close_to_release_seconds"


def account(*live: int, n_free: int = 90, stale: bool = False) -> dict[str, Any]:
    engine = {"blocks_total": 100, "blocks_free": n_free, "blocks_cached": 10}
    tokens = {"generated_tokens_total": 7, "wasted_tokens_total": 2}
    return {"stale": stale, "live": [{"rid": rid} for rid in live], "engine": engine | tokens}


@contextlib.asynccontextmanager
async def gauge_of(*answers: str | dict[str, Any]) -> AsyncIterator[tuple[Gauge, list[str]]]:
    """A gauge whose server gives these answers in order, and the last one repeatedly; and the requested paths."""
    paths: list[str] = []
    has_left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                answer = answers[min(len(paths), len(answers) - 1)]
                paths.append(head.split()[1].decode())
                body = answer if isinstance(answer, str) else json.dumps(answer)
                writer.write(plain(200, body.encode()))
        writer.close()
        await writer.wait_closed()
        has_left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1])
        async with dial(target) as connection:
            yield Gauge(target_server(target), connection), paths
        await has_left.wait()


@pytest.mark.parametrize(
    ("stats", "n_others", "released"),
    [
        (account(), 0, True),
        (account(1), 0, False),
        (account(n_free=89), 0, False),
        (account(stale=True), 0, False),
        (account(1, n_free=80), 1, True),
        (account(1, 2), 1, False),
    ],
    ids=["nothing", "a sequence", "a block", "stale", "the other one", "one more"],
)
def test_release_is_of_everything(stats: dict[str, Any], n_others: int, released: bool) -> None:
    assert is_released(stats, n_others) is released


async def test_release_is_waited_for_without_a_pause() -> None:
    async with gauge_of(account(1), account(1), account()) as (gauge, paths):
        await gauge.until_released()
    assert paths == ["/stats"] * 3


async def test_tokens_are_counted() -> None:
    """The engine's count includes tokens that no client received."""
    answers = (account(), {"tokens": {"generated": 5}}, {"error": {"code": "stream_not_found"}})
    async with gauge_of(*answers) as (gauge, paths):
        assert (await gauge.computed(), await gauge.generated("a"), await gauge.generated("b")) == (9, 5, 0)
    assert paths == ["/stats", "/v1/streams/a", "/v1/streams/b"]


async def test_releases_are_read_from_the_metrics() -> None:
    text = f'{RELEASED}_count{{reason="cancelled"}} 2\n{RELEASED}_sum{{reason="cancelled"}} 0.5\n'
    text += f'{RELEASED}_count{{reason="slow_client"}} 1\n{RELEASED}_sum{{reason="slow_client"}} 0.25\n'
    async with gauge_of(text) as (gauge, _):
        assert await gauge.released() == (3.0, 0.75)


async def test_numbers_are_waited_for() -> None:
    async with gauge_of("running 0\n", "running 1\n") as (gauge, paths):
        await gauge.until("a start", lambda samples: samples["running", ""] == 1)
        assert paths == ["/metrics"] * 2
    async with gauge_of({}, {"tokens": {"generated": 2}}, {"tokens": {"generated": 3}}) as (gauge, paths):
        await gauge.until_generated("a", 3)
        assert len(paths) == 3


async def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gauge_of(account(1)) as (gauge, _):
        monkeypatch.setattr(module, "LIMIT_S", 1.0)
        monkeypatch.setattr(time, "perf_counter", iter(range(1000)).__next__)
        with pytest.raises(LoadError, match="waited 1 s in vain for a release"):
            await gauge.until_released()
        with pytest.raises(LoadError, match="waited 1 s in vain for a start"):
            await gauge.until("a start", lambda samples: False)
        with pytest.raises(LoadError, match="waited 1 s in vain for 3 tokens"):
            await gauge.until_generated("a", 3)
