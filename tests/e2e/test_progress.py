"""Clients that want to know how far they are: in the queue and in their prompt, over real sockets, with one slot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import openai
import pytest

from sluiceway.sse.decoder import Decoder
from sluiceway.sse.event import ServerEvent
from support.raw_http import RawConnection
from support.requests import ENDLESS, completion, open_stream, take, wait_quiet
from support.server import Server

STEP_TOKENS = 64
STEP_S = 0.3
"""Longer than what lies between two tellings: nothing is passed over."""


@pytest.fixture(scope="module")
def shared_narrow() -> Iterator[Server]:
    flags = ("--max-running", "1", "--max-step-tokens", str(STEP_TOKENS), "--fake-step", str(STEP_S))
    with Server("fake", *flags) as server:
        yield server


@pytest.fixture
def narrow(shared_narrow: Server) -> Iterator[Server]:
    """One sequence at a time, slowly."""
    yield shared_narrow
    wait_quiet(shared_narrow)


def occupied(server: Server, stream_id: str = "first") -> RawConnection:
    """Somebody has the only slot."""
    body = completion(server, n_tokens=ENDLESS, sluiceway={"stream_id": stream_id})
    connection, events = open_stream(server, body)
    take(events, 1)
    return connection


def waiting(server: Server, stream_id: str) -> RawConnection:
    """Somebody stands in the queue."""
    connection, _ = open_stream(server, completion(server, n_tokens=1, sluiceway={"stream_id": stream_id}))
    return connection


def cancel(server: Server, stream_id: str) -> None:
    assert server.post(f"/v1/streams/{stream_id}/cancel", {})[0] == 200


def events_of(connection: RawConnection) -> Iterator[ServerEvent]:
    decoder = Decoder()
    return (event for chunk in connection.read_chunks() for event in decoder.feed(chunk))


def posted(server: Server, body: dict[str, Any]) -> tuple[RawConnection, Iterator[ServerEvent]]:
    """A native stream from its head on."""
    connection = server.connect()
    connection.request("POST", "/v1/stream", body)
    assert connection.read_head()[0] == 200
    return connection, events_of(connection)


def named(events: Iterable[ServerEvent], name: str) -> list[Any]:
    return [json.loads(event.data) for event in events if event.event == name]


def finish(*connections: RawConnection) -> None:
    for connection in connections:
        connection.finish()


def test_place_in_the_queue_is_told_when_others_leave(narrow: Server) -> None:
    """Third, second, first; then its prompt and its answer. A reader that joins is told what holds now."""
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


def test_prompt_is_counted_up_to_its_end(narrow: Server) -> None:
    """In the chunks in which it is computed; the last is told with the first token."""
    body = {"prompt": "x" * (4 * STEP_TOKENS), "max_tokens": 2, "progress": "events"}
    connection, events = posted(narrow, body)
    start, *rest = events
    total = json.loads(start.data)["prompt_tokens"]
    told = named(rest, "prefill")
    assert [one["computed"] for one in told] == [64, 128, 192, 256, total][: len(told)] and len(told) >= 4
    assert {one["total"] for one in told} == {total} and told[-1]["computed"] == total
    order = [event.event for event in rest if event.event != "queued"]
    assert order == ["prefill"] * len(told) + ["token", "token", "done"]
    connection.finish()


def test_progress_is_a_line_that_means_nothing_when_it_is_a_comment(narrow: Server) -> None:
    """The events are those of a stream without."""
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
    """The text of a stream that the SDK read; `meanwhile` is called when it has its first chunk."""
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
def test_sdk_reads_what_it_reads_without_when_progress_is_told(narrow: Server, resumable: bool) -> None:
    """Also where events carry ids, and keep-alives come as often as they may."""
    with openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        plain = chat_with_sdk(narrow, client, {}, lambda: None)
        first = occupied(narrow)
        options = {"progress": "comments", "keep_alive_s": 0.01, "resumable": resumable}
        told = chat_with_sdk(narrow, client, options, lambda: cancel(narrow, "first"))
    assert told == plain != ""
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
def test_progress_is_refused_by_name_when_it_cannot_be_told(
    narrow: Server, path: str, fields: dict[str, Any], param: str
) -> None:
    """In a whole answer, as events that an SDK would take for chunks, in a way that is none."""
    body = (completion(narrow) if path == "/v1/completions" else {"prompt": "once"}) | fields
    status, answer = narrow.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)
