"""Streams that are cut and resumed over real sockets: every event comes once, in order, byte for byte."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from support.raw_http import RawAnswer, RawConnection
from support.requests import COMPLETIONS, ENDLESS, completion, wait_quiet
from support.server import Server, wait_until

_ids = map("stream-{}".format, itertools.count(1))


def resumable(server: Server, n_tokens: int, **options: Any) -> tuple[str, dict[str, Any]]:
    """The id and the body of a request for a resumable stream."""
    stream_id = next(_ids)
    wanted = {"resumable": True, "stream_id": stream_id, **options}
    return stream_id, completion(server, "again", n_tokens, stream=True, sluiceway=wanted)


def opened(server: Server, body: dict[str, Any], **headers: str) -> RawConnection:
    connection = server.connect()
    connection.request("POST", COMPLETIONS, body, headers)
    status, _ = connection.read_head()
    assert status == 200
    return connection


def read_blocks(connection: RawConnection, n: int | None = None) -> list[bytes]:
    """The next blocks, or all of them without a number."""
    read, chunks = b"", connection.read_chunks()
    while n is None or read.count(b"\n\n") < n:
        chunk = next(chunks, None)
        if chunk is None:
            break
        read += chunk
    return [block + b"\n\n" for block in read.split(b"\n\n")[:-1]][:n]


def resume(server: Server, stream_id: str, after: int | None = None) -> RawConnection:
    """A new connection that reads the stream after this event, or from its beginning."""
    connection = server.connect()
    headers = {"Accept": "text/event-stream"} | ({} if after is None else {"Last-Event-ID": str(after)})
    connection.request("GET", f"/v1/streams/{stream_id}", headers=headers)
    return connection


def resumed_answer(server: Server, stream_id: str, after: int | None = None) -> RawAnswer:
    with resume(server, stream_id, after) as connection:
        return connection.read_answer()


def ids_of(blocks: list[bytes]) -> list[int]:
    return [int(match[1]) for block in blocks if (match := re.match(rb"id: (\d+)\n", block))]


@pytest.mark.parametrize("cut_at", [1, 7, 40])
def test_a_stream_that_was_cut_is_resumed(fake: Server, cut_at: int) -> None:
    """It is cut twice. The pieces together are the stream, byte for byte, with each id once."""
    stream_id, body = resumable(fake, 300, on_disconnect="detach")
    connection = opened(fake, body)
    first = read_blocks(connection, cut_at)
    connection.reset()
    again = resume(fake, stream_id, cut_at)
    assert again.read_head()[0] == 200
    second = read_blocks(again, 5)
    again.finish()
    with resume(fake, stream_id, cut_at + 5) as last:
        assert last.read_head()[0] == 200
        third = read_blocks(last)
    pieces = first + second + third
    assert ids_of(pieces) == list(range(1, len(pieces) + 1)) and pieces[-1].endswith(b"data: [DONE]\n\n")
    assert b"".join(pieces) == resumed_answer(fake, stream_id).body


def test_several_readers_get_the_same_events(fake: Server) -> None:
    """One reads from the beginning, and one comes later."""
    stream_id, body = resumable(fake, 300)
    with opened(fake, body) as connection, resume(fake, stream_id) as other:
        assert other.read_head()[0] == 200
        assert read_blocks(other) == read_blocks(connection)


def test_a_resume_after_the_last_event_gets_204(fake: Server) -> None:
    """It makes a browser that reconnects after the end stop."""
    stream_id, body = resumable(fake, 8)
    with opened(fake, body) as connection:
        last_id = ids_of(read_blocks(connection))[-1]
    assert resumed_answer(fake, stream_id, last_id).status == 204
    assert resumed_answer(fake, stream_id, last_id - 1).status == 200
    assert resumed_answer(fake, stream_id, last_id + 1).status == 400
    assert resumed_answer(fake, "never-there").status == 404


def test_events_that_are_no_longer_kept_are_gone() -> None:
    """The answer is 410, so a client does not take a part for the whole."""
    with Server("fake", "--replay-bytes", "2000", "--replay-ttl", "1") as server:
        stream_id, body = resumable(server, 200)
        with opened(server, body) as connection:
            last_id = ids_of(read_blocks(connection))[-1]
        assert resumed_answer(server, stream_id, 1).status == 410
        assert resumed_answer(server, stream_id, last_id - 2).status == 200
        wait_until(
            lambda: resumed_answer(server, stream_id, last_id - 2).status == 410, "its events are no longer kept"
        )
        assert resumed_answer(server, stream_id, last_id).status == 204


def test_a_stream_without_readers_is_cancelled_unless_it_detaches(fake: Server) -> None:
    """A resumable stream is cancelled too."""
    before = fake.finished("disconnected")
    _, body = resumable(fake, ENDLESS)
    connection = opened(fake, body)
    read_blocks(connection, 3)
    connection.finish()
    wait_until(lambda: fake.finished("disconnected") == before + 1, "it was cancelled")


def test_a_detached_stream_continues_to_its_limit_and_then_ends(fake: Server) -> None:
    """It generates a limited number of tokens, is paused, and ends after its grace time."""
    before = fake.finished("grace_expired")
    _, body = resumable(fake, ENDLESS, on_disconnect="detach", grace_s=2)
    connection = opened(fake, body)
    read_blocks(connection, 3)
    connection.reset()
    wait_until(lambda: fake.stats()["engine"]["paused"] == 1, "it is paused")
    (one,) = fake.stats()["live"]
    assert 200 < one["known_tokens"] < 600
    wait_until(lambda: fake.finished("grace_expired") == before + 1, "it was ended")
    wait_quiet(fake)


def test_a_request_with_a_key_is_answered_once(fake: Server) -> None:
    """Sent again, it joins its response or gets a replay. With another body it is refused."""
    accepted = fake.stats()["engine"]["accepted_total"]
    body = completion(fake, "keyed", 200, stream=True)
    key = {"Idempotency-Key": next(_ids)}
    with opened(fake, body, **key) as connection, opened(fake, body, **key) as other:
        first = read_blocks(connection)
        assert read_blocks(other) == first
    with opened(fake, body, **key) as later:
        assert read_blocks(later) == first
    with fake.connect() as wrong:
        wrong.request("POST", COMPLETIONS, body | {"max_tokens": 5}, key)
        assert wrong.read_answer().status == 422
    assert fake.stats()["engine"]["accepted_total"] == accepted + 1


def test_a_plain_answer_with_a_key_is_replayed(fake: Server) -> None:
    """It is not generated again."""
    body, key = completion(fake, "keyed", 20), {"Idempotency-Key": next(_ids)}
    bodies = []
    for _ in range(2):
        with fake.connect() as connection:
            connection.request("POST", COMPLETIONS, body, key)
            bodies.append(connection.read_answer().body)
    assert bodies[0] == bodies[1]
