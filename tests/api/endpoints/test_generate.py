"""A request for tokens, from its body to its end. Nothing is held after its client has left."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway.api.http.request import BodyLimits
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta
from sluiceway.ipc.messages.to_tokenizer import Cancel
from sluiceway.refusals import DRAINING
from sluiceway.types import FinishReason
from support.asgi_driver import Api, AsgiDriver, completion, fetch, settle

PATH = "/v1/completions"
TOO_LONG = Refusal(status=400, code="context_length_exceeded", message="Too long.")


chunks_or_not = pytest.mark.parametrize("chunks", [True, False], ids=["chunks", "send"])
"""Whether the server lets the owner of a stream write by itself."""


def start(api: Api, *, stream: bool = True, n: int = 1, chunks: bool = False) -> AsgiDriver:
    return AsgiDriver(api.app, "POST", PATH, completion(stream=stream, n=n), offers_chunks=chunks).start()


async def opened(api: Api, *, stream: bool = True, n: int = 1, chunks: bool = False) -> AsgiDriver:
    """A request that was sent to the tokenizer."""
    driver, before = start(api, stream=stream, n=n, chunks=chunks), len(api.upstream.requests)
    await settle(lambda: len(api.upstream.requests) > before)
    return driver


@pytest.fixture
def api() -> Api:
    return Api()


# Whole answers.


@chunks_or_not
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_answered(api: Api, stream: bool, chunks: bool) -> None:
    """The answer has all text, and nothing is left."""
    api.upstream.script = ["Hel", "lo"]
    driver = await start(api, stream=stream, chunks=chunks).done()
    assert driver.status == 200 and driver.is_over
    if stream:
        *events, done = driver.events
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == "Hello" and done == "[DONE]"
    else:
        assert driver.json()["choices"][0]["text"] == "Hello"
    assert not api.upstream.cancels
    api.assert_quiet()


async def test_the_head_is_sent_on_acceptance(api: Api) -> None:
    """It is not sent earlier, and does not wait for a token."""
    driver = await opened(api)
    await settle()
    assert driver.sent == []
    api.upstream.accept()
    await settle(lambda: driver.sent)
    assert driver.status == 200 and driver.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in driver.headers and "content-encoding" not in driver.headers
    driver.vanish()
    await driver.done()


@chunks_or_not
async def test_a_token_is_written_immediately(api: Api, chunks: bool) -> None:
    """Each step is one write."""
    driver = await opened(api, chunks=chunks)
    api.upstream.accept()
    await settle()
    for n in range(1, 4):
        api.upstream.speak("x")
        await settle(n=4)
        assert len(driver.writes) == n
    driver.vanish()
    await driver.done()


async def test_a_step_is_one_write_for_each_stream_and_wakes_no_task(api: Api) -> None:
    """If the server offers `chunks`, the events of a step are written while its message is handled."""
    drivers = [await opened(api, n=2, chunks=True) for _ in range(3)]
    rids = [rid for request in api.upstream.requests for rid in request.rids]
    api.upstream.accept(*rids)
    await settle()
    for n in range(1, 4):
        api.upstream.say(*(Delta(rid, text, (1,)) for rid in rids for text in "ab"))
        assert [len(driver.writes) for driver in drivers] == [n] * 3
        assert [len(driver.events) for driver in drivers] == [4 * n] * 3
    assert api.delivered_tokens == 36
    for driver in drivers:
        driver.vanish()
        await driver.done()


async def test_a_slow_reader_gets_waiting_events_when_there_is_room(api: Api) -> None:
    """Until then they are in the backlog and count. A full transport gets nothing."""
    driver = await opened(api, chunks=True)
    api.upstream.accept()
    await settle()
    driver.stall()
    for text in "abcde":
        api.upstream.speak(text)
    await settle()
    assert driver.writes == [] and api.delivered_tokens == 0
    driver.catch_up()
    assert len(driver.writes) == 1 and len(driver.events) == 5 and api.delivered_tokens == 5
    api.upstream.finish()
    await driver.done()
    assert driver.is_over
    api.assert_quiet()


async def test_nothing_is_written_to_a_client_that_has_just_left(api: Api) -> None:
    """The server knows it already, but the task of the response has not run yet."""
    driver = await opened(api, chunks=True)
    api.upstream.accept()
    await settle()
    driver.vanish()
    api.upstream.speak("x")
    assert driver.writes == []
    await driver.done()
    assert api.upstream.cancels == [Cancel((1,), FinishReason.DISCONNECTED)] and api.wasted_tokens == 1


async def test_waiting_events_are_written_together(api: Api) -> None:
    """Each event is whole."""
    driver = await opened(api)
    api.upstream.accept()
    await settle()
    driver.stall()
    for text in "abcde":
        api.upstream.speak(text)
        await settle(n=3)
    api.upstream.finish()
    driver.read(2)
    await driver.done()
    assert len(driver.writes) == 2 and len(driver.events) == 7 and driver.is_over
    api.assert_quiet()


@chunks_or_not
async def test_a_stalled_reader_does_not_delay_others(api: Api, chunks: bool) -> None:
    stalled = await opened(api, chunks=chunks)
    stalled.stall()
    api.upstream.accept()
    api.upstream.script = ["x"]
    assert (await fetch(api.app, "POST", PATH, completion())).status == 200
    stalled.vanish()
    await stalled.done()


# Refusals.


async def test_a_bad_request_is_refused_by_the_api_process(api: Api) -> None:
    """Nothing is sent to the tokenizer. The refusal is counted and logged."""
    driver = await fetch(api.app, "POST", PATH, b"{")
    assert driver.status == 400 and driver.json()["error"]["code"] == "invalid_json"
    assert not api.upstream.pushed and api.metrics.stats()["rejected"] == {"invalid_json": 1}
    assert api.lines[-1]["event"] == "rejected" and api.lines[-1]["status"] == 400


async def test_a_rejection_by_the_engine_is_an_error_status(api: Api) -> None:
    """A stream gets a status too, since its head was not sent."""
    driver = await opened(api)
    api.upstream.reject(TOO_LONG)
    await driver.done()
    assert driver.status == 400 and driver.json()["error"]["code"] == "context_length_exceeded"
    api.assert_quiet()


async def test_a_request_is_refused_while_the_server_drains(api: Api) -> None:
    """The answer says when to try again."""
    api.dispatcher.drain()
    driver = await fetch(api.app, "POST", PATH, completion())
    assert driver.status == 503 and driver.headers["retry-after"] == "1"
    assert driver.json()["error"]["code"] == "draining"


async def test_a_body_over_the_limit_is_refused() -> None:
    """It is not read, and the connection is closed."""
    api = Api(limits=BodyLimits(max_bytes=20))
    driver = await fetch(api.app, "POST", PATH, completion())
    assert driver.status == 413 and driver.headers["connection"] == "close"
    assert "x-request-id" in driver.headers


async def test_a_server_may_say_more_than_once_that_the_body_has_ended(api: Api) -> None:
    """Uvicorn does so for bodies in chunks. It does not mean that the client has left."""
    driver = AsgiDriver(api.app, "POST", PATH, completion())
    driver.pieces.append({"type": "http.request", "body": b"", "more_body": False})
    api.upstream.script = ["x"]
    await driver.run()
    assert driver.status == 200


# Ends that the server causes.


@chunks_or_not
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_is_an_event_or_a_status(api: Api, stream: bool, chunks: bool) -> None:
    """A stream gets an error event, a whole answer gets an error status."""
    driver = await opened(api, stream=stream, chunks=chunks)
    api.upstream.accept()
    api.upstream.speak("x")
    await settle()
    api.upstream.finish(reason=FinishReason.ERROR)
    await driver.done()
    if stream:
        *_, error, done = driver.events
        assert driver.status == 200 and json.loads(error)["error"]["code"] == "internal_error" and done == "[DONE]"
    else:
        assert driver.status == 500 and driver.json()["error"]["code"] == "internal_error"
    assert driver.is_over
    api.assert_quiet()


@chunks_or_not
async def test_an_end_that_comes_during_a_write_is_written_too(api: Api, chunks: bool) -> None:
    """The reader was slow to take the events before."""
    driver = await opened(api, chunks=chunks)
    api.upstream.accept()
    await settle()
    driver.stall()
    api.upstream.speak("x")
    await settle()
    api.dispatcher.end_all(FinishReason.DRAINING, DRAINING)
    driver.catch_up()
    driver.read(2)
    await driver.done()
    assert driver.is_over and '"draining"' in driver.events[-2]


# Clients that leave.


@chunks_or_not
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("moment", ["queued", "prefill", "decoding", "stuck"])
async def test_a_client_that_leaves_is_cancelled(api: Api, stream: bool, moment: str, chunks: bool) -> None:
    """The writer may wait for the acceptance, for a token, or for the client."""
    driver = await opened(api, stream=stream, n=2, chunks=chunks)
    if moment != "queued":
        api.upstream.accept()
    await settle()
    if moment == "stuck":
        driver.stall()
    if moment in ("decoding", "stuck"):
        api.upstream.speak("x")
        await settle()
    driver.vanish()
    await settle(lambda: api.upstream.cancels, n=2)
    assert api.upstream.cancels == [Cancel((1, 2), FinishReason.DISCONNECTED)]
    await driver.done()
    api.upstream.end_cancelled(api.upstream.cancels[0])
    api.assert_quiet()


async def test_a_client_that_leaves_during_its_body_starts_nothing(api: Api) -> None:
    driver = AsgiDriver(api.app, "POST", PATH, [b'{"model"'], sends_all=False).start()
    await settle()
    driver.vanish()
    await driver.done()
    assert driver.sent == [] and not api.upstream.pushed


async def test_a_connection_lost_during_receive_counts_as_a_client_that_left(api: Api) -> None:
    driver = await opened(api)
    api.upstream.accept()

    class Broken(Exception):
        pass

    async def run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_once() -> Message:
            if other.pieces:
                return await receive()
            raise Broken

        await app(scope, receive_once, send)

    other = AsgiDriver(api.app, "POST", PATH, completion(stream=True))
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context.get("exception")))
    await run(api.app, other.scope, other.receive, other.send)
    assert api.upstream.cancels == [Cancel((2,), FinishReason.DISCONNECTED)]
    driver.vanish()
    await driver.done()


async def run_for(api: Api, driver: AsgiDriver, n_turns: int) -> None:
    """Run a scripted exchange for this many turns of the loop. Upstream does one thing in each turn."""
    started = 0
    for _ in range(n_turns):
        await asyncio.sleep(0)
        if not api.upstream.requests or api.upstream.cancels:
            continue
        rid = api.upstream.rid
        started += 1
        match started:
            case 1:
                api.upstream.say(Accepted(rid, 1, 0))
            case 5:
                api.upstream.finish(rid)
            case n if n < 5:
                api.upstream.say(Delta(rid, "x", (1,)))
            case _:
                driver.catch_up()


@chunks_or_not
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stalls", [True, False])
async def test_nothing_is_held_wherever_a_task_is_cancelled(stream: bool, stalls: bool, chunks: bool) -> None:
    """The task is cancelled at every turn of the loop, and so at every await."""
    n_turns, seen = 0, set[str]()
    while True:
        api = Api()
        driver = AsgiDriver(api.app, "POST", PATH, completion(stream=stream), offers_chunks=chunks)
        if stalls:
            driver.stall()
        driver.start()
        assert driver.task is not None
        await run_for(api, driver, n_turns)
        if driver.task.done():
            break
        driver.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driver.task
        assert api.dispatcher.registry.n_open == 0
        for cancel in api.upstream.cancels:
            api.upstream.end_cancelled(cancel)
        api.assert_quiet()
        seen.add("cancelled" if api.upstream.cancels else "finished" if api.upstream.requests else "not opened")
        n_turns += 1
        assert n_turns < 200
    assert {"not opened", "cancelled"} <= seen


async def test_a_request_with_a_key_and_an_id_may_be_sent_again_after_a_fault(api: Api) -> None:
    """The key and the id are free then, so there is no 409."""
    body = completion(stream=True, sluiceway={"stream_id": "mine"})
    key = {"idempotency-key": "k"}
    first = AsgiDriver(api.app, "POST", PATH, body, key).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    api.upstream.speak("a")
    api.upstream.finish(reason=FinishReason.ERROR, refusal=TOO_LONG)
    assert '"error"' in (await first.done()).events[-2]
    api.upstream.script = ["Hel", "lo"]
    second = await AsgiDriver(api.app, "POST", PATH, body, key).start().done()
    assert second.status == 200 and second.headers["x-stream-id"] == "mine" and len(api.upstream.requests) == 2
    again = await AsgiDriver(api.app, "POST", PATH, body, key).start().done()
    assert again.body == second.body and len(api.upstream.requests) == 2
    api.assert_quiet()


async def test_a_whole_answer_is_kept_from_its_end_on() -> None:
    """The time to generate it does not count."""
    api = Api(streams=StreamsConfig(replay_ttl_s=10.0))
    key = {"idempotency-key": "k", "x-stream-id": "s"}
    first = AsgiDriver(api.app, "POST", PATH, completion(), key).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    api.now_s = 100.0
    api.upstream.speak("a")
    api.upstream.finish()
    await first.done()
    api.now_s = 109.0
    api.dispatcher.registry.tick()
    again = await AsgiDriver(api.app, "POST", PATH, completion(), key).start().done()
    assert again.body == first.body and len(api.upstream.requests) == 1
    told = (await fetch(api.app, "GET", "/v1/streams/s")).json()
    assert told["ended"] - told["created"] == 100.0
