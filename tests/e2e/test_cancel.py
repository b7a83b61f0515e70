"""Cancels streams by their ids, in every state, over real sockets. The receipt and the engine show the effect."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.raw_http import RawConnection
from support.requests import ENDLESS, completion, error_of, open_stream, take
from support.server import Server, wait_until


def cancel(server: Server, stream_id: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    with server.connect() as connection:
        connection.request("POST", f"/v1/streams/{stream_id}/cancel", headers=headers)
        answer = connection.read_answer()
        return answer.status, answer.json()


def assert_holds_nothing(server: Server) -> None:
    """Holds at this moment, without waiting."""
    engine = server.stats()["engine"]
    assert engine["blocks_free"] == engine["blocks_total"], engine
    assert (engine["running"], engine["waiting"], engine["paused"]) == (0, 0, 0), engine


def endless(server: Server, stream_id: str, **options: Any) -> dict[str, Any]:
    return completion(server, n_tokens=ENDLESS, sluiceway={"stream_id": stream_id, **options})


@pytest.mark.parametrize("n", [1, 3])
def test_receipt_says_what_was_released_when_a_running_stream_is_cancelled(fake: Server, n: int) -> None:
    """The receipt lists each choice. The reader gets the error, and the engine holds nothing."""
    connection, events = open_stream(fake, endless(fake, f"middle-{n}") | {"n": n})
    take(events, 5 * n)
    status, receipt = cancel(fake, f"middle-{n}")
    assert_holds_nothing(fake)
    assert status == 200 and receipt["found"] == "open"
    assert [sequence["state"] for sequence in receipt["sequences"]] == ["running"] * n
    assert receipt["blocks_freed"] >= n and 0.0 <= receipt["release_ms"] < 5000.0
    assert receipt["tokens"]["generated"] >= 5 * n and receipt["usage"]["prompt_tokens"] > 0
    *_, error, done = events
    assert '"code":"cancelled"' in error and done == "[DONE]"
    connection.finish()
    assert cancel(fake, f"middle-{n}") == (200, receipt)


def test_whole_answer_is_an_error_when_it_is_cancelled(fake: Server) -> None:
    """Its head is not sent yet, so the error is a status."""
    connection = fake.connect()
    connection.request("POST", "/v1/completions", endless(fake, "plain"))
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    assert cancel(fake, "plain")[0] == 200
    assert_holds_nothing(fake)
    answer = connection.read_answer()
    assert (answer.status, error_of(answer.json())["code"]) == (499, "cancelled")
    connection.finish()


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ({"policy": "pause", "high_events": 8, "low_events": 4}, "paused"),
        ({"policy": "pause-park-drop", "high_events": 8, "low_events": 4, "park_after_s": 0}, "parked"),
    ],
)
def test_stream_of_a_slow_reader_is_cancelled(fake: Server, policy: dict[str, Any], state: str) -> None:
    """A paused sequence still has its blocks; a parked one has released them before."""
    body = endless(fake, state, slow_client=policy) | {"return_token_ids": True}
    connection, _ = open_stream(fake, body, receive_buffer_bytes=4096)
    wait_until(lambda: [live["state"] for live in fake.stats()["live"]] == [state], f"it is {state}")
    status, receipt = cancel(fake, state)
    assert_holds_nothing(fake)
    (sequence,) = receipt["sequences"]
    assert status == 200 and sequence["state"] == state and (sequence["blocks"] == 0) == (state == "parked")
    connection.reset()


def test_waiting_request_never_runs_when_it_is_cancelled() -> None:
    """It never has a block or a token."""
    with Server("fake", "--max-running", "1") as server:
        connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
        take(events, 1)
        waiting, _ = open_stream(server, endless(server, "waiting"))
        status, receipt = cancel(server, "waiting")
        assert status == 200 and receipt["sequences"] == [{"state": "waiting", "blocks": 0}]
        assert receipt["tokens"]["generated"] == receipt["blocks_freed"] == 0
        waiting.finish()
        connection.finish()


def test_detached_stream_is_cancelled(fake: Server) -> None:
    """Its client has left, and without the cancellation it would continue."""
    connection, events = open_stream(fake, endless(fake, "alone", resumable=True, on_disconnect="detach"))
    take(events, 2)
    connection.finish()
    wait_until(lambda: fake.get("/v1/streams/alone")[1].find(b'"detached"') > 0, "it is detached")
    status, receipt = cancel(fake, "alone")
    assert (status, receipt["found"]) == (200, "detached")
    assert_holds_nothing(fake)


def test_cancelling_an_ended_unknown_or_foreign_stream_is_refused(fake: Server) -> None:
    """The stream of another caller continues."""
    assert fake.post("/v1/completions", completion(fake, n_tokens=2, sluiceway={"stream_id": "over"}))[0] == 200
    status, answer = cancel(fake, "over")
    assert (status, error_of(answer)["code"]) == (409, "stream_ended")
    status, answer = cancel(fake, "never")
    assert (status, error_of(answer)["code"]) == (404, "stream_not_found")
    connection, events = open_stream(fake, endless(fake, "mine"))
    take(events, 1)
    status, answer = cancel(fake, "mine", {"Authorization": "Bearer another"})
    assert (status, error_of(answer)["code"]) == (404, "stream_not_found")
    take(events, 5)
    connection.finish()


def test_receipts_come_when_many_streams_are_cancelled(fake: Server) -> None:
    """All of them generate while they are cancelled one after another, each on its own connection."""
    opened = [open_stream(fake, endless(fake, f"many-{i}")) for i in range(8)]
    for _, events in opened:
        take(events, 1)
    asking = [RawConnection(fake.port) for _ in opened]
    started_s = time.monotonic()
    for i, connection in enumerate(asking):
        connection.request("POST", f"/v1/streams/many-{i}/cancel")
    answers = [connection.read_answer() for connection in asking]
    assert [answer.status for answer in answers] == [200] * 8
    assert_holds_nothing(fake)
    assert max(answer.json()["release_ms"] for answer in answers) <= (time.monotonic() - started_s) * 1000.0
    for connection in (*asking, *(stream for stream, _ in opened)):
        connection.finish()
