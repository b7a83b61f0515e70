"""Readers that do not keep up, over real sockets: what each policy does to them, and that others are not affected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.raw_http import RawConnection
from support.requests import COMPLETIONS, ENDLESS, chunks_of, completion, open_stream, take, token_ids, wait_quiet
from support.server import Server, wait_until

N_TOKENS = 1000
"""More events than the sockets and the policy hold for a reader that does not read."""
SMALL = 4096
"""The receive buffer of a client whose silence the server should notice soon."""


def stalled(server: Server, policy: object, n_tokens: int = N_TOKENS) -> tuple[RawConnection, Iterator[str]]:
    """A stream whose reader takes one event and then stops."""
    body = completion(server, "slow", n_tokens, return_token_ids=True, sluiceway={"slow_client": policy})
    connection, events = open_stream(server, body, receive_buffer_bytes=SMALL)
    take(events, 1)
    return connection, events


@pytest.fixture(scope="module")
def expected(shared_fake: Server) -> list[int]:
    """The token ids that a reader gets if it keeps up."""
    connection, events = open_stream(shared_fake, completion(shared_fake, "slow", N_TOKENS, return_token_ids=True))
    with connection:
        return token_ids(chunks_of(events))


def actions(server: Server, name: str) -> float:
    return server.metric("sluiceway_stream_actions_total", action=name)


def generated(server: Server) -> int:
    n_tokens: int = server.stats()["engine"]["generated_tokens_total"]
    return n_tokens


def test_a_stalled_reader_pauses_its_request_and_loses_nothing(fake: Server, expected: list[int]) -> None:
    """The engine reports the request as paused, and generates nothing for it until the reader continues."""
    pauses = actions(fake, "pause")
    connection, events = stalled(fake, "pause")
    with connection:
        wait_until(lambda: fake.stats()["engine"]["paused"] == 1, "the engine has paused it")
        made = generated(fake)
        assert generated(fake) == made and fake.stats()["engine"]["running"] == 0
        assert fake.stats()["live"][0]["state"] == "paused" and fake.stats()["live"][0]["blocks"] > 0
        assert token_ids(chunks_of(events)) == expected[1:]
    assert actions(fake, "pause") > pauses and actions(fake, "resume") >= 1


def test_a_parked_request_holds_no_block_and_resumes_exactly(fake: Server, expected: list[int]) -> None:
    """It is paused first. When its reader continues, its tokens are computed again."""
    connection, events = stalled(fake, {"policy": "pause-park-drop", "park_after_s": 0.2, "drop_after_s": 60})
    with connection:
        wait_until(lambda: [one["state"] for one in fake.stats()["live"]] == ["parked"], "it is parked")
        assert [one["blocks"] for one in fake.stats()["live"]] == [0] and fake.stats()["engine"]["blocks_leased"] == 0
        assert token_ids(chunks_of(events)) == expected[1:]


def test_a_dropped_reader_can_read_why(fake: Server) -> None:
    """It gets an error in place of what it did not take, never a finish reason. The engine releases it before."""
    before = fake.finished("slow_client")
    connection, events = stalled(fake, {"policy": "drop", "drop_after_s": 0.2}, ENDLESS)
    with connection:
        wait_until(lambda: fake.finished("slow_client") == before + 1, "it was ended")
        assert fake.stats()["live"] == []
        *chunks, error, done = events
        assert json.loads(error)["error"]["code"] == "slow_client" and done == "[DONE]"
        assert all(json.loads(chunk)["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_a_reader_that_takes_nothing_at_all_is_disconnected(fake: Server) -> None:
    """Also under a policy that allows any backlog: the stall timeout ends the connection."""
    before = actions(fake, "disconnect")
    connection, _ = stalled(fake, {"policy": "unbounded", "stall_timeout_s": 0.5}, ENDLESS)
    wait_until(lambda: actions(fake, "disconnect") == before + 1, "it was disconnected")
    wait_quiet(fake)
    connection.finish()


def test_neighbours_of_stalled_readers_are_served(fake: Server) -> None:
    """Five readers get their whole answers while three do not read."""
    slow = [stalled(fake, "pause", ENDLESS)[0] for _ in range(3)]

    def read(i: int) -> list[Any]:
        connection, events = open_stream(fake, completion(fake, f"healthy {i}", 300))
        with connection:
            return chunks_of(events)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(read, range(5)))
    assert all(chunks[-1]["choices"][0]["finish_reason"] == "length" for chunks in answers)
    wait_until(lambda: fake.stats()["engine"]["paused"] == 3, "three are paused")
    for connection in slow:
        connection.reset()
    wait_quiet(fake)


def test_a_stream_is_kept_alive_while_its_request_waits_for_a_slot() -> None:
    """Comments come from acceptance until the first token; then it is served as usual."""
    with Server("fake", "--max-running", "1") as server:
        first, events = open_stream(server, completion(server, n_tokens=ENDLESS))
        take(events, 1)
        second = server.connect()
        body = completion(server, n_tokens=4, stream=True, sluiceway={"keep_alive_s": 0.25})
        second.request("POST", COMPLETIONS, body)
        assert second.read_head()[0] == 200
        chunks = second.read_chunks()
        assert [next(chunks), next(chunks)] == [b":\n\n", b":\n\n"]
        first.reset()
        with second:
            assert b"".join(chunks).endswith(b"data: [DONE]\n\n")
        wait_quiet(server)
