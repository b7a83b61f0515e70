"""One writer writes to one client, from head to end, directly to the transport or through `send`."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sluiceway.api.responses.writer import TURN_BYTES
from sluiceway.config import StreamsConfig
from sluiceway.ipc.messages.to_api import Delta
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.ipc.messages.to_tokenizer import Cancel
from sluiceway.protocols.common.pieces import PIECE_BYTES
from sluiceway.types import FinishReason, Flow
from support.asgi_driver import Api, AsgiDriver, completion, settle

PATH = "/v1/completions"
chunks_or_not = pytest.mark.parametrize("chunks", [True, False], ids=["chunks", "send"])


async def opened(api: Api, *, chunks: bool, **wishes: object) -> AsgiDriver:
    body = completion(stream=True, max_tokens=10_000, sluiceway=wishes)
    driver = AsgiDriver(api.app, "POST", PATH, body, offers_chunks=chunks).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    await settle()
    return driver


def pass_time(api: Api, seconds: float) -> None:
    for _ in range(round(seconds * 4)):
        api.now_s += 0.25
        api.dispatcher.registry.tick()


@chunks_or_not
async def test_a_large_backlog_is_written_in_bounded_writes(chunks: bool) -> None:
    """A reader that catches up gets all of it without another event."""
    api = Api()
    driver = await opened(api, chunks=chunks, slow_client="unbounded")
    driver.stall()
    for _ in range(40):
        api.upstream.speak("x" * 10_000)
    await settle()
    driver.catch_up()
    driver.read(20)
    await settle(n=100)
    assert len(driver.events) == 40 and max(map(len, driver.writes)) <= 64 * 1024
    api.upstream.finish()
    await driver.done()
    assert driver.is_over
    api.assert_quiet()


@pytest.mark.parametrize("n", [1, 2])
async def test_events_that_come_together_are_one_write_for_each_response(n: int) -> None:
    """An event of a single choice is written when it comes, and does not wait in the backlog."""
    api = Api()
    driver = AsgiDriver(api.app, "POST", PATH, completion(stream=True, n=n, max_tokens=10), offers_chunks=True).start()
    await settle(lambda: api.upstream.requests)
    (request,) = api.upstream.requests
    api.upstream.accept(*request.rids)
    await settle()
    for _ in range(3):
        api.upstream.say(*(Delta(rid, "x", (1,)) for rid in request.rids))
    assert len(driver.written) == 3 and len(driver.events) == 3 * n
    assert api.delivered_tokens == 3 * n
    driver.stall()
    for _ in range(2):
        api.upstream.say(*(Delta(rid, "y", (1,)) for rid in request.rids))
    assert len(driver.written) == 3 and api.dispatcher.registry.budget.n_events == 2 * n
    driver.catch_up()
    assert len(driver.written) == 4 and len(driver.events) == 5 * n
    driver.vanish()
    await driver.done()


@chunks_or_not
async def test_a_client_that_takes_nothing_is_broken_off(chunks: bool) -> None:
    """It does not matter what the writer waits for. Nothing is left of it."""
    api = Api(streams=StreamsConfig(slow_client="unbounded", stall_timeout_s=2.0))
    driver = await opened(api, chunks=chunks)
    driver.stall()
    for _ in range(3):
        api.upstream.speak("x")
        await settle(n=3)
    pass_time(api, 3.0)
    assert api.upstream.cancels == [Cancel((1,), FinishReason.SLOW_CLIENT)]
    pass_time(api, 3.0)
    await settle(lambda: driver.task is not None and driver.task.done())
    assert driver.task is not None and driver.task.done() and api.dispatcher.registry.n_open == 0
    assert not driver.is_over


async def test_a_paused_request_resumes_when_its_reader_has_caught_up() -> None:
    """It does not wait for the next tick."""
    api = Api(streams=StreamsConfig(slow_client="pause"))
    driver = await opened(api, chunks=True)
    api.upstream.speak("x")
    driver.unsent_bytes = 100_000
    driver.stall()
    for _ in range(3):
        api.upstream.speak("x")
    for answer in api.dispatcher.registry:
        answer.watch()
    pass_time(api, 1.0)
    assert api.upstream.pushed[-1:] == [SetFlow((1,), Flow.PAUSE)]
    driver.unsent_bytes = 0
    driver.catch_up()
    assert api.upstream.pushed[-1:] == [SetFlow((1,), Flow.RUN)]
    api.upstream.finish()
    await driver.done()


@chunks_or_not
async def test_a_dropped_reader_gets_the_reason_and_the_end(chunks: bool) -> None:
    """It gets them when it reads again, in place of the events that waited."""
    api = Api(streams=StreamsConfig(slow_client="drop", drop_after_s=1.0, high_events=4, low_events=1))
    driver = await opened(api, chunks=chunks)
    driver.stall()
    for _ in range(9):
        api.upstream.speak("x")
        await settle(n=2)
    pass_time(api, 2.0)
    driver.catch_up()
    driver.read(3)
    await driver.done()
    assert driver.is_over and '"slow_client"' in driver.events[-2] and len(driver.events) <= 3


@chunks_or_not
async def test_a_whole_answer_is_written_in_pieces(chunks: bool) -> None:
    """The head has the length of all. Written pieces are released."""
    api = Api()
    driver = AsgiDriver(api.app, "POST", PATH, completion(max_tokens=10_000), offers_chunks=chunks).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    for _ in range(5):
        api.upstream.speak("x" * 100_000)
    assert api.dispatcher.registry.census().backlog_bytes == 500_000
    api.upstream.finish()
    await driver.done()
    assert driver.json()["choices"][0]["text"] == "x" * 500_000
    assert driver.headers["content-length"] == str(len(driver.body))
    assert max(map(len, driver.writes)) <= PIECE_BYTES
    assert api.dispatcher.registry.census().backlog_bytes == 0 and api.delivered_tokens == 5
    api.assert_quiet()


async def large_answer(api: Api) -> AsgiDriver:
    """A whole answer of twenty pieces, which its reader begins to take."""
    driver = AsgiDriver(api.app, "POST", PATH, completion(max_tokens=10_000), offers_chunks=True).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    api.upstream.speak("x" * (20 * PIECE_BYTES))
    api.upstream.finish()
    return driver


async def test_one_turn_of_the_loop_writes_a_bounded_amount() -> None:
    """However fast a reader takes it, other readers have their turn."""
    api = Api()
    driver = await large_answer(api)
    written = [0]
    while driver.task is not None and not driver.task.done():
        await asyncio.sleep(0)
        written.append(len(driver.body))
    assert max(after - before for before, after in itertools.pairwise(written)) <= TURN_BYTES + PIECE_BYTES
    assert len(set(written)) > 10


async def test_a_reader_that_leaves_between_two_turns_gets_nothing_more() -> None:
    """Events that were not written are dropped, and their tokens count as wasted."""
    api = Api()
    driver = await large_answer(api)
    await settle(lambda: len(driver.writes) > 1)
    driver.vanish()
    await driver.done()
    assert not 20 * PIECE_BYTES <= len(driver.body)
    assert (api.delivered_tokens, api.wasted_tokens) == (0, 1)
    assert api.dispatcher.registry.census().backlog_bytes == 0
    api.assert_quiet()


async def test_readers_of_one_whole_answer_share_its_pieces() -> None:
    """A repeated `Idempotency-Key` gets the same objects."""
    api = Api(streams=StreamsConfig(replay_bytes=1 << 20))
    key = {"Idempotency-Key": "k"}
    first = AsgiDriver(api.app, "POST", PATH, completion(max_tokens=9), key, offers_chunks=True).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    api.upstream.speak("x" * (4 * PIECE_BYTES))
    api.upstream.finish()
    await first.done()
    again = await AsgiDriver(api.app, "POST", PATH, completion(max_tokens=9), key, offers_chunks=True).start().done()
    assert again.body == first.body and again.headers["content-length"] == first.headers["content-length"]
    large = [pair for pair in zip(first.written, again.written, strict=True) if len(pair[0]) == PIECE_BYTES]
    assert len(large) >= 3 and all(one is other for one, other in large)
