"""A stream can be read on from any event that is kept."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.api.endpoints.resume import last_event_id_of
from sluiceway.config import StreamsConfig
from sluiceway.errors import RequestError
from support.asgi_driver import Api, AsgiDriver, completion, settle

PATH = "/v1/completions"


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


async def posted(api: Api, *, is_done: bool = True) -> AsgiDriver:
    """A stream with the id `s` and the texts `a` and `b`."""
    body = completion(stream=True, sluiceway={"resumable": True, "stream_id": "s"})
    driver = AsgiDriver(api.app, "POST", PATH, body).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    for text in "ab":
        api.upstream.speak(text)
    if is_done:
        api.upstream.finish()
        await driver.done()
    return driver


async def resume(api: Api, after: int | str | None = None, stream_id: str = "s", method: str = "GET") -> AsgiDriver:
    headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
    driver = AsgiDriver(api.app, method, f"/v1/streams/{stream_id}", headers=headers)
    await driver.run()
    return driver


@pytest.fixture
def api() -> Api:
    return Api()


async def test_missed_events_are_read(api: Api) -> None:
    """The reader gets all events, or those after the event that it names."""
    whole = (await posted(api)).body
    assert whole.startswith(b"id: 1\n") and b"id: 4\ndata: [DONE]\n\n" in whole
    again = await resume(api)
    assert again.body == whole and again.headers["x-stream-id"] == "s"
    rest = (await resume(api, 2)).body
    assert rest.startswith(b"id: 3\n") and whole.endswith(rest)


async def test_new_events_are_read_too(api: Api) -> None:
    """The second reader reads to the end, while the first one reads too."""
    first = await posted(api, is_done=False)
    other = AsgiDriver(api.app, "GET", "/v1/streams/s", headers={"accept": "text/event-stream"}).start()
    await settle()
    api.upstream.finish()
    await first.done()
    await other.done()
    assert other.body == first.body and other.is_over


async def test_nothing_follows_the_end(api: Api) -> None:
    """204 stops an EventSource. An evicted stream whose record is kept gets it too."""
    api = Api(streams=StreamsConfig(replay_ttl_s=1.0))
    await posted(api)
    assert (await resume(api, 4)).status == 204
    api.now_s = 5.0
    api.dispatcher.registry.tick()
    assert (await resume(api, 4)).status == 204
    gone = await resume(api, 3)
    assert gone.status == 410 and gone.json()["error"]["code"] == "stream_gone"


async def test_an_event_that_is_not_kept_is_gone() -> None:
    """The window was too small."""
    api = Api(streams=StreamsConfig(replay_events=1))
    await posted(api)
    assert (await resume(api, 1)).status == 410


@pytest.mark.parametrize(("after", "stream_id", "status"), [(9, "s", 400), ("x", "s", 400), (0, "t", 404)])
async def test_unknown_events_and_streams_are_refused(api: Api, after: int | str, stream_id: str, status: int) -> None:
    """The event was never sent, its id is invalid, or the stream is unknown."""
    await posted(api)
    assert (await resume(api, after, stream_id)).status == status


async def test_head_has_no_body(api: Api) -> None:
    """It adds no reader."""
    await posted(api)
    head = await resume(api, method="HEAD")
    assert head.status == 200 and head.body == b"" and head.headers["x-stream-id"] == "s"
    assert api.metrics.stream_actions["reattach"].value == 0


def test_a_reader_without_an_event_id_begins_at_the_beginning() -> None:
    """The id may be empty."""
    assert last_event_id_of(scope()) == last_event_id_of(scope((b"last-event-id", b""))) == 0
    assert last_event_id_of(scope((b"last-event-id", b"17"))) == 17
    with pytest.raises(RequestError):
        last_event_id_of(scope((b"last-event-id", b"1" * 40)))


@pytest.mark.parametrize("after", [None, 0, 1, 4, 9])
@pytest.mark.parametrize("moment", ["waiting", "accepted", "running", "ended"])
async def test_a_stream_that_is_not_resumable_is_gone(api: Api, after: int | None, moment: str) -> None:
    """The answer is the same at any time, for any event id, and when only its record is left."""
    driver = AsgiDriver(api.app, "POST", PATH, completion(stream=True), {"x-stream-id": "s"}).start()
    await settle(lambda: api.upstream.requests)
    if moment != "waiting":
        api.upstream.accept()
    if moment in ("running", "ended"):
        api.upstream.speak("a")
        api.upstream.speak("b")
    if moment == "ended":
        api.upstream.finish()
        await driver.done()
    refused = await resume(api, after)
    assert (refused.status, refused.json()["error"]["code"]) == (410, "stream_gone")
    assert "cannot be resumed" in refused.json()["error"]["message"]
    driver.vanish()
    await driver.done()


async def test_a_whole_answer_cannot_be_resumed(api: Api) -> None:
    """It is kept under its key, but has no events."""
    api.upstream.script = ["a"]
    headers = {"x-stream-id": "s", "idempotency-key": "k"}
    assert (await AsgiDriver(api.app, "POST", PATH, completion(), headers).start().done()).status == 200
    assert (await resume(api)).status == 410
