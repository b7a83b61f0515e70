"""A process dies or hangs: every open request gets an answer, the server reports it, and serves again."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq

from support.raw_http import RawAnswer, RawConnection
from support.requests import (
    COMPLETIONS,
    ENDLESS,
    chunks_of,
    completion,
    error_of,
    open_stream,
    take,
    token_ids,
    wait_quiet,
)
from support.server import START_S, Server, is_alive, wait_until

ANSWER_S = 15.0
"""A lost process is reported within a second; a machine that runs other tests takes longer."""

roles = pytest.mark.parametrize("role", ["engine", "tokenizer"])


@pytest.fixture
def server() -> Iterator[Server]:
    """A separate server with few slots and a short heartbeat timeout."""
    with Server("fake", "--max-running", "8", "--heartbeat-timeout", "1.5") as server:
        yield server


def events_to_the_end(events: Iterator[str]) -> list[str]:
    return list(events)


@roles
def test_every_open_request_gets_an_error_when_a_process_is_killed(server: Server, role: str) -> None:
    """Running streams, running whole answers and waiting requests. Then the server serves again."""
    streams = [open_stream(server, completion(server, f"s{i}", n_tokens=ENDLESS)) for i in range(4)]
    for _, events in streams:
        take(events, 2)
    plain = [server.connect(timeout_s=ANSWER_S) for _ in range(12)]
    for i, connection in enumerate(plain):
        connection.request("POST", COMPLETIONS, completion(server, f"p{i}", n_tokens=ENDLESS))
    wait_until(lambda: server.stats()["engine"]["waiting"] == 8, "slots are full, others wait")

    victim = server.pid_of(role)
    with ThreadPoolExecutor(16) as pool:
        endings = [pool.submit(events_to_the_end, events) for _, events in streams]
        answers = [pool.submit(connection.read_answer) for connection in plain]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not server.is_ready(), "it says that it is not ready")
        assert_all_fail(endings, answers)
    for connection in [*plain, *(connection for connection, _ in streams)]:
        connection.finish()

    wait_until(server.is_ready, "it serves again", START_S)
    assert not is_alive(victim) and server.pid_of(role) != victim
    status, answer = server.post(COMPLETIONS, completion(server, n_tokens=4))
    assert status == 200 and answer["usage"]["completion_tokens"] == 4
    wait_quiet(server)


def assert_all_fail(endings: list[Future[list[str]]], answers: list[Future[RawAnswer]]) -> None:
    for ending in endings:
        *_, error, end = ending.result(ANSWER_S)
        assert end == "[DONE]"
        assert error_of(json.loads(error))["type"] == "server_error"
    for answer in answers:
        refused = answer.result(ANSWER_S)
        assert refused.status == 503
        assert error_of(refused.json())["type"] == "server_error"


@roles
def test_a_request_is_refused_while_a_process_is_down(server: Server, role: str) -> None:
    """It gets 503 with `retry-after` immediately, and does not wait for the process."""
    body = completion(server, n_tokens=2)
    with server.connect(timeout_s=ANSWER_S) as connection:
        os.kill(server.pid_of(role), signal.SIGKILL)
        wait_until(lambda: not server.is_ready(), "it says that it is not ready")
        connection.request("POST", COMPLETIONS, body)
        answer = connection.read_answer()
    assert answer.status == 503
    assert error_of(answer.json())["type"] == "server_error"
    assert float(answer.headers["retry-after"]) > 0
    wait_until(server.is_ready, "it serves again", START_S)
    assert server.post(COMPLETIONS, body)[0] == 200, "a server that says it is ready serves"


def test_a_stream_is_complete_when_the_engine_was_frozen(server: Server) -> None:
    """After SIGSTOP the server is soon not ready. After SIGCONT it is ready, and no token is lost or sent twice."""
    expected = answer_ids(server, "frozen")
    connection, events = open_stream(server, long_request(server, "frozen"))
    first = take(events, 3)
    engine = server.pid_of("engine")
    os.kill(engine, signal.SIGSTOP)
    try:
        wait_until(lambda: not server.is_ready(), "it says that it is not ready")
        assert server.status_of("/health/live") == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_until(server.is_ready, "it is ready again")
    with connection:
        assert token_ids([*first, *chunks_of(events)]) == expected
    wait_quiet(server)
    assert server.pid_of("engine") == engine


def long_request(server: Server, prompt: str) -> dict[str, object]:
    return completion(server, prompt, n_tokens=600, return_token_ids=True)


def answer_ids(server: Server, prompt: str) -> list[int]:
    connection, events = open_stream(server, long_request(server, prompt))
    with connection:
        return token_ids(chunks_of(events))


def test_a_client_that_leaves_a_frozen_engine_is_released_later(server: Server) -> None:
    """The cancel waits in the pipe. Once the engine continues, nothing of the request remains."""
    connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
    take(events, 2)
    engine = server.pid_of("engine")
    os.kill(engine, signal.SIGSTOP)
    try:
        connection.reset()
        wait_until(lambda: not server.is_ready(), "it says that it is not ready")
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_until(server.is_ready, "it is ready again")
    wait_quiet(server)
    assert server.finished("disconnected") == 1


def test_the_api_process_is_replaced_or_the_server_ends_when_it_is_killed() -> None:
    """In both cases no process is left behind."""
    with Server("fake") as server:
        victim = server.pid_of("api")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not is_alive(victim), "the process is gone")
        wait_until(lambda: server.process.poll() is not None or server.is_ready(), "it ended or serves again", START_S)


def test_children_leave_when_the_supervisor_is_killed() -> None:
    """A killed supervisor cannot stop its children. They notice its death by themselves."""
    server = Server("fake")
    server.wait_ready()
    children = set(server.stats()["processes"].values()) - {server.process.pid}
    assert len(children) == 3
    server.process.kill()
    server.wait_exit()
    wait_until(lambda: not any(map(is_alive, children)), "the orphans have left")


def test_a_connection_closes_when_its_stream_has_failed(server: Server) -> None:
    """After the error event the body ends correctly, so no client waits."""
    connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
    take(events, 1)
    os.kill(server.pid_of("engine"), signal.SIGKILL)
    assert list(events)[-1] == "[DONE]"
    assert isinstance(connection, RawConnection)
    connection.finish()
    wait_until(server.is_ready, "it serves again", START_S)


def test_no_connection_is_refused_while_the_api_process_starts_again(server: Server) -> None:
    """The kernel accepts connections, and the next API process serves them."""
    victim = server.pid_of("api")
    with ThreadPoolExecutor(8) as pool:
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not is_alive(victim), "the process is gone")
        asked = [pool.submit(server.post, COMPLETIONS, completion(server, f"c{i}", n_tokens=2)) for i in range(16)]
        assert [answer.result(START_S)[0] for answer in asked] == [200] * 16
    assert server.pid_of("api") != victim


def test_connections_are_answered_while_the_api_process_hangs() -> None:
    """The supervisor answers them with 503. When the API process continues, it answers them again."""
    with Server("fake", "--heartbeat-timeout", "0.5") as server:
        victim, body = server.pid_of("api"), completion(server, n_tokens=2)
        os.kill(victim, signal.SIGSTOP)
        try:
            status, answer = server.post(COMPLETIONS, body)
            assert status == 503 and error_of(answer)["code"] == "api_unavailable"
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(server.is_ready, "it is ready again")
        assert server.pid_of("api") == victim


@pytest.mark.parametrize("role", ["api", "tokenizer", "engine"])
def test_a_process_that_stays_frozen_is_started_again(role: str) -> None:
    """Its requests are lost, and the server serves again."""
    with Server("fake", "--heartbeat-timeout", "0.5", "--restart-hung-after", "1") as server:
        victim = server.pid_of(role)
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: not is_alive(victim), "it is killed", START_S)
        wait_until(server.is_ready, "it serves again", START_S)
        assert server.pid_of(role) != victim
        wait_until(lambda: server.post(COMPLETIONS, completion(server, n_tokens=2))[0] == 200, "it answers")


def test_a_step_longer_than_the_heartbeat_timeout_stays_healthy() -> None:
    """The engine sends heartbeats from a separate thread. The gap of its loop shows how long its steps took."""
    with Server("fake", "--heartbeat-timeout", "0.5", "--fake-step", "1") as server:
        connection, events = open_stream(server, completion(server, n_tokens=3))
        n_events = 0
        for _ in events:
            n_events += 1
            assert server.is_ready()
        connection.finish()
        assert n_events >= 3
        assert "process hangs" not in server.log
        wait_until(
            lambda: server.metric("sluiceway_loop_longest_gap_seconds", process="engine") >= 1, "the gap is measured"
        )


def test_junk_on_the_socket_files_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process counts it and continues."""
    with tempfile.TemporaryDirectory(prefix="junk-") as home:
        monkeypatch.setenv("TMPDIR", home)
        with Server("fake") as server:
            before = server.stats()["processes"]
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            for path in Path(home).glob("sluiceway-*/*"):
                if path.is_socket():
                    kind = zmq.DEALER if path.name == "control" else zmq.PUSH
                    stranger: zmq.Socket[bytes] = zmq.Socket(context, kind)
                    stranger.connect(f"ipc://{path}")
                    for frames in ([b"junk"], [b""], [b"a", b"b"]):
                        stranger.send_multipart(frames)
                    stranger.close(linger=5_000)
            context.term()
            assert all(map(is_alive, before.values()))
            wait_until(
                lambda: server.metric("sluiceway_dropped_messages_total", process="api") > 0, "the API process counts"
            )
            wait_until(
                lambda: server.metric("sluiceway_dropped_messages_total", process="supervisor") > 0, "so does another"
            )
            assert server.stats()["processes"] == before
            assert server.post(COMPLETIONS, completion(server, n_tokens=2))[0] == 200
