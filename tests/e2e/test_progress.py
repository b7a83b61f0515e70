"""Progress reports over real sockets, with one slot: the place in the queue, and the computed part of the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import openai
import pytest

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.event import ServerEvent
from support.raw_http import RawConnection
from support.requests import ENDLESS, completion, open_stream, take, wait_quiet
from support.server import Server

STEP_TOKENS = 64
STEP_S = 0.3
"""A step takes longer than the time between two reports, so no report is skipped."""


@pytest.fixture(scope="module")
def shared_narrow() -> Iterator[Server]:
    flags = ("--max-running", "1", "--max-step-tokens", str(STEP_TOKENS), "--fake-step", str(STEP_S))
    with Server("fake", *flags) as server:
        yield server


@pytest.fixture
def narrow(shared_narrow: Server) -> Iterator[Server]:
    """A slow server that runs one sequence at a time."""
    yield shared_narrow
    wait_quiet(shared_narrow)


def occupied(server: Server, stream_id: str = "first") -> RawConnection:
    """A stream that takes the only slot."""
    body = completion(server, n_tokens=ENDLESS, sluiceway={"stream_id": stream_id})
    connection, events = open_stream(server, body)
    take(events, 1)
    return connection


def waiting(server: Server, stream_id: str) -> RawConnection:
    """A stream that waits in the queue."""
    connection, _ = open_stream(server, completion(server, n_tokens=1, sluiceway={"stream_id": stream_id}))
    return connection


def cancel(server: Server, stream_id: str) -> None:
    assert server.post(f"/v1/streams/{stream_id}/cancel", {})[0] == 200


def events_of(connection: RawConnection) -> Iterator[ServerEvent]:
    decoder = EventDecoder()
    return (event for chunk in connection.read_chunks() for event in decoder.feed(chunk))


def posted(server: Server, body: dict[str, Any]) -> tuple[RawConnection, Iterator[ServerEvent]]:
    """The connection and the events of a native stream."""
    connection = server.connect()
    connection.request("POST", "/v1/stream", body)
    assert connection.read_head()[0] == 200
    return connection, events_of(connection)


def named(events: Iterable[ServerEvent], name: str) -> list[Any]:
    return [json.loads(event.data) for event in events if event.event == name]


def finish(*connections: RawConnection) -> None:
    for connection in connections:
        connection.finish()


def test_place_in_the_queue_is_reported_when_others_leave(narrow: Server) -> None:
    """It is third, second, first; then the prompt and the answer follow. A reader that joins gets the current place."""
    others = [occupied(narrow), waiting(narrow, "second"), waiting(narrow, "third")]
    body = {"prompt": "once", "max_tokens": 2, "stream_id": "mine", "progress": "events", "resumable": True}
    connection, events = posted(narrow, body)
    start, queued = next(events), next(events)
    assert (start.event, start.last_event_id) == ("start", "1")
    assert (queued.event, queued.data, queued.last_event_id) == ("queued", '{"position":3}', "1")
    cancel(narrow, "second")
    assert next(events).data == '{"position":2}'
    with narrow.connect() as joined:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        joined.request("GET", "/v1/streams/mine", headers=headers)
        assert joined.read_head()[0] == 200
        followed = events_of(joined)
        assert next(followed).data == '{"position":2}'
        cancel(narrow, "third")
        assert next(events).data == next(followed).data == '{"position":1}'
        cancel(narrow, "first")
        rest, again = [*events], [*followed]
    rest, again = ([event for event in one if event.event != "prefill"] for one in (rest, again))
    assert [event.event for event in rest] == ["token", "token", "done"] and again == rest
    finish(connection, *others)


def test_prompt_is_reported_up_to_its_end(narrow: Server) -> None:
    """There is one report for each computed chunk; the last comes with the first token."""
    body = {"prompt": "x" * (4 * STEP_TOKENS), "max_tokens": 2, "progress": "events"}
    connection, events = posted(narrow, body)
    start, *rest = events
    total = json.loads(start.data)["prompt_tokens"]
    reports = named(rest, "prefill")
    assert [one["computed"] for one in reports] == [64, 128, 192, 256, total][: len(reports)] and len(reports) >= 4
    assert {one["total"] for one in reports} == {total} and reports[-1]["computed"] == total
    order = [event.event for event in rest if event.event != "queued"]
    assert order == ["prefill"] * len(reports) + ["token", "token", "done"]
    connection.finish()


def test_progress_in_comments_changes_no_event(narrow: Server) -> None:
    """The events are those of a stream without progress."""
    first = occupied(narrow)
    body = completion(narrow, n_tokens=2, stream=True, sluiceway={"progress": "comments"})
    connection = narrow.connect()
    connection.request("POST", "/v1/completions", body)
    assert connection.read_head()[0] == 200
    chunks = connection.read_chunks()
    assert next(chunks) == b": queued position=1\n\n"
    cancel(narrow, "first")
    raw = b"".join(chunks)
    *texts, done = (block for block in raw.split(b"\n\n") if block and not block.startswith(b":"))
    assert len(texts) == 2 and all(text.startswith(b"data: {") for text in texts) and done == b"data: [DONE]"
    finish(first, connection)


def chat_with_sdk(server: Server, client: openai.OpenAI, options: dict[str, Any], meanwhile: Callable[[], None]) -> str:
    """The text of a stream that the SDK reads; `meanwhile` is called after its first chunk."""
    stream = client.chat.completions.create(
        model=completion(server)["model"],
        messages=[{"role": "user", "content": "Say hello. " * 20}],
        max_tokens=3,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "sluiceway": options},
    )
    texts = [next(stream).choices[0].delta.content or ""]
    meanwhile()
    return "".join([*texts, *(chunk.choices[0].delta.content or "" for chunk in stream)])


@pytest.mark.parametrize("resumable", [True, False])
def test_sdk_reads_the_same_with_progress(narrow: Server, resumable: bool) -> None:
    """Also when events carry ids, and with very frequent keep-alive comments."""
    with openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        plain = chat_with_sdk(narrow, client, {}, lambda: None)
        first = occupied(narrow)
        options = {"progress": "comments", "keep_alive_s": 0.01, "resumable": resumable}
        reports = chat_with_sdk(narrow, client, options, lambda: cancel(narrow, "first"))
    assert reports == plain != ""
    first.finish()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/generate", {"progress": "events"}, "progress"),
        ("/v1/completions", {"sluiceway": {"progress": "comments"}}, "sluiceway.progress"),
        ("/v1/completions", {"stream": True, "sluiceway": {"progress": "events"}}, "sluiceway.progress"),
        ("/v1/stream", {"progress": True}, "progress"),
    ],
)
def test_unsupported_progress_is_refused_by_name(narrow: Server, path: str, fields: dict[str, Any], param: str) -> None:
    """In a whole answer, as events that an SDK would take for chunks, and as a wrong value."""
    body = (completion(narrow) if path == "/v1/completions" else {"prompt": "once"}) | fields
    status, answer = narrow.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)
