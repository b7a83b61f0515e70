"""The native protocol over real sockets: the same tokens streamed, whole, resumed and repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.event import ServerEvent
from support.server import Server

PROMPT: dict[str, Any] = {"prompt": "once", "max_tokens": 40, "seed": 7}
EVENTS = {"Accept": "text/event-stream"}


def read_stream(
    server: Server, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[dict[str, str], bytes]:
    """The head and all bytes of a stream."""
    with server.connect() as connection:
        connection.request(method, path, body, headers)
        status, head = connection.read_head()
        assert status == 200, connection.read_some()
        return head, b"".join(connection.read_chunks())


def events_of(raw: bytes) -> list[ServerEvent]:
    return list(EventDecoder().feed(raw))


def test_stream_and_whole_answer_are_the_same_with_the_same_seed(fake: Server) -> None:
    """The stream has one event for each token, in order, then the reason and the usage."""
    _, raw = read_stream(fake, "POST", "/v1/stream", PROMPT)
    start, *tokens, done = events_of(raw)
    assert [event.event for event in (start, done)] == ["start", "done"]
    read = [json.loads(token.data) for token in tokens]
    assert [token["index"] for token in read] == list(range(40))
    status, whole = fake.post("/v1/generate", PROMPT)
    assert status == 200 and whole["token_ids"] == [token["id"] for token in read]
    assert whole["text"] == "".join(token["text"] for token in read)
    end = json.loads(done.data)
    assert (end["reason"], end["usage"]) == (whole["reason"], whole["usage"]) == ("length", end["usage"])


@pytest.mark.parametrize("n_read", [0, 1, 7, 41])
def test_stream_is_the_same_when_it_was_cut_and_resumed(fake: Server, n_read: int) -> None:
    """The events before and after the cut are those of the uncut stream, byte for byte."""
    stream_id = f"cut-{n_read}"
    body = PROMPT | {"stream_id": stream_id, "resumable": True, "on_disconnect": "detach"}
    with fake.connect() as connection:
        connection.request("POST", "/v1/stream", body)
        assert connection.read_head()[0] == 200
        before = b""
        for chunk in connection.read_chunks():
            before += chunk
            if before.count(b"\n\n") >= n_read:
                break
    blocks = before.split(b"\n\n")[:n_read]
    head, after = read_stream(fake, "GET", f"/v1/streams/{stream_id}", headers=EVENTS | {"Last-Event-ID": str(n_read)})
    assert head["content-type"].startswith("text/event-stream")
    _, uncut = read_stream(fake, "GET", f"/v1/streams/{stream_id}", headers=EVENTS)
    assert b"".join(block + b"\n\n" for block in blocks) + after == uncut
    assert [event.last_event_id for event in events_of(uncut)] == [str(n) for n in range(1, 43)]


def test_answer_is_generated_once_when_its_request_comes_twice(fake: Server) -> None:
    """The second request comes at the same time or later, streamed or whole. With another body the key is refused."""
    generated = fake.stats()["engine"]["generated_tokens_total"]
    for path in ("/v1/stream", "/v1/generate"):
        body = {"prompt": "once", "max_tokens": 40}
        key = {"Idempotency-Key": f"key-{path[4:]}"}
        connections = [fake.connect() for _ in range(3)]
        for connection in connections[:2]:
            connection.request("POST", path, body, key)
        answers = [connection.read_answer() for connection in connections[:2]]
        connections[2].request("POST", path, body, key)
        answers.append(connections[2].read_answer())
        assert [answer.status for answer in answers] == [200] * 3
        assert answers[0].body == answers[1].body == answers[2].body
        connections[0].request("POST", path, body | {"max_tokens": 41}, key)
        assert connections[0].read_answer().status == 422
        for connection in connections:
            connection.finish()
    assert fake.stats()["engine"]["generated_tokens_total"] == generated + 80


def test_ended_stream_is_listed(fake: Server) -> None:
    """It is found by the id of its answer."""
    _, whole = fake.post("/v1/generate", PROMPT)
    status, raw = fake.get(f"/v1/streams/{whole['id']}")
    entry = json.loads(raw)
    assert (status, entry["state"], entry["reason"], entry["usage"]) == (200, "closed", "length", whole["usage"])
    assert entry["tokens"] == {"generated": 40, "delivered": 40, "wasted": 0} and entry["ended"] >= entry["created"]
    assert whole["id"] in [stream["id"] for stream in json.loads(fake.get("/v1/streams")[1])["data"]]
