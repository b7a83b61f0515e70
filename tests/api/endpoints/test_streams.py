"""The endpoints below `/v1/streams`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluiceway.ipc.messages.to_api import Finished
from sluiceway.types import FinishReason, Held
from support.asgi_driver import Api, AsgiDriver, completion, fetch, settle

KEY = {"authorization": "Bearer one"}


@pytest.fixture
def api() -> Api:
    return Api()


async def opened(api: Api, stream_id: str, headers: dict[str, str] | None = None, **options: Any) -> AsgiDriver:
    body = completion(stream=True, sluiceway={"stream_id": stream_id, **options})
    n_before = len(api.upstream.requests)
    driver = AsgiDriver(api.app, "POST", "/v1/completions", body, headers).start()
    await settle(lambda: len(api.upstream.requests) > n_before)
    api.upstream.accept()
    api.upstream.speak("a")
    await settle(lambda: driver.writes)
    return driver


async def listing(api: Api, query: bytes) -> AsgiDriver:
    driver = AsgiDriver(api.app, "GET", "/v1/streams")
    driver.scope["query_string"] = query
    await driver.run()
    return driver


async def page(api: Api, stream_id: str, **headers: str) -> AsgiDriver:
    return await fetch(api.app, "GET", f"/v1/streams/{stream_id}", b"", **headers)


async def test_the_record_of_a_stream_can_be_read_during_and_after_it(api: Api) -> None:
    """The head of the response has its id. Times are of the wall clock."""
    driver = await opened(api, "mine")
    assert driver.headers["x-stream-id"] == "mine"
    running = (await page(api, "mine")).json()
    assert (running["state"], running["reason"], running["ended"]) == ("open", None, None)
    assert running["created"] == 1_700_000_000.5
    assert running["usage"] == {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 1}
    api.now_s = 2.0
    api.upstream.finish()
    await driver.done()
    ended = (await page(api, "mine")).json()
    assert (ended["state"], ended["reason"], ended["tokens"]) == (
        "closed",
        "stop",
        {"generated": 1, "delivered": 1, "wasted": 0},
    )


async def test_streams_are_listed_for_their_caller(api: Api) -> None:
    """The list has running and ended streams, but none of other callers."""
    first = await opened(api, "one")
    api.upstream.finish()
    await first.done()
    second = await opened(api, "two")
    third = await opened(api, "three", KEY)
    listed = (await fetch(api.app, "GET", "/v1/streams")).json()
    assert [(entry["id"], entry["state"]) for entry in listed["data"]] == [("one", "closed"), ("two", "open")]
    assert [entry["id"] for entry in (await fetch(api.app, "GET", "/v1/streams", b"", **KEY)).json()["data"]] == [
        "three"
    ]
    for driver in (second, third):
        driver.vanish()
        await driver.done()


async def test_a_list_has_a_bounded_number_of_the_last_streams(api: Api) -> None:
    """The caller may ask for fewer."""
    api.upstream.script = ["a"]
    for n in range(4):
        await fetch(api.app, "POST", "/v1/completions", completion(), x_stream_id=f"s{n}")
    for query, ids in ((b"", ["s0", "s1", "s2", "s3"]), (b"limit=2", ["s2", "s3"]), (b"limit=1000", ["s0"])):
        listed = (await listing(api, query)).json()["data"]
        assert [entry["id"] for entry in listed][: len(ids)] == ids


@pytest.mark.parametrize(
    "query",
    [b"limit=0", b"limit=1001", b"limit=-1", b"limit=ten", b"limit=" + b"9" * 5000, b"limit=", b"limit=5&limit=6"],
)
async def test_an_invalid_limit_is_refused(api: Api, query: bytes) -> None:
    """The error names the field."""
    answer = await listing(api, query)
    assert (answer.status, answer.json()["error"]["param"]) == (400, "limit")


async def test_stream_of_another_caller_is_not_found(api: Api) -> None:
    """The message is the same as for an unknown stream."""
    driver = await opened(api, "theirs", KEY)
    answers = [(await page(api, stream_id)) for stream_id in ("nobodys", "theirs")]
    assert [answer.status for answer in answers] == [404, 404]
    assert {answer.json()["error"]["code"] for answer in answers} == {"stream_not_found"}
    assert (await page(api, "theirs", **KEY)).status == 200
    driver.vanish()
    await driver.done()


async def test_a_client_that_accepts_events_gets_the_stream(api: Api) -> None:
    """An `EventSource` gets it from the beginning."""
    driver = await opened(api, "mine", resumable=True)
    twin = AsgiDriver(api.app, "GET", "/v1/streams/mine", headers={"accept": "Text/Event-Stream"}).start()
    await settle(lambda: len(twin.sent) > 1)
    assert twin.headers["content-type"].startswith("text/event-stream")
    api.upstream.finish()
    await asyncio.gather(driver.done(), twin.done())
    assert twin.body == driver.body and b"id: 1\n" in twin.body


async def test_receipt_is_given_when_a_stream_is_cancelled(api: Api) -> None:
    """200 means that it has stopped."""
    driver = await opened(api, "mine")
    cancel = AsgiDriver(api.app, "POST", "/v1/streams/mine/cancel").start()
    await settle(lambda: api.upstream.cancels)
    (message,) = api.upstream.cancels
    api.upstream.say(
        Finished(rid=message.rids[0], reason=FinishReason.CANCELLED, completion_tokens=1, held=Held("running", 3))
    )
    await asyncio.gather(driver.done(), cancel.done())
    receipt = cancel.json()
    assert (cancel.status, receipt["id"], receipt["found"], receipt["blocks_freed"]) == (200, "mine", "open", 3)
    assert receipt["tokens"]["generated"] == 1
    again = await fetch(api.app, "POST", "/v1/streams/mine/cancel")
    assert (again.status, again.json()) == (200, receipt)


async def test_cancellation_is_refused_when_there_is_nothing_to_stop(api: Api) -> None:
    """Each case has its own answer, and is counted."""
    assert (await fetch(api.app, "POST", "/v1/streams/none/cancel")).status == 404
    driver = await opened(api, "mine")
    api.upstream.finish()
    await driver.done()
    late = await fetch(api.app, "POST", "/v1/streams/mine/cancel")
    assert (late.status, late.json()["error"]["code"]) == (409, "stream_ended")
    assert api.metrics.requests_rejected["stream_ended"].value == 1


async def test_the_body_of_a_cancellation_is_ignored(api: Api) -> None:
    """Many clients send one with every POST. The connection stays open."""
    answer = await fetch(api.app, "POST", "/v1/streams/none/cancel", b'{"why": "enough"}')
    assert answer.status == 404 and "connection" not in answer.headers
    long = AsgiDriver(api.app, "POST", "/v1/streams/none/cancel", [b"x" * 10_000] * 10)
    await long.run()
    assert long.status == 404 and long.headers["connection"] == "close"
