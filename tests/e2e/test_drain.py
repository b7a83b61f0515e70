"""An orderly stop: new requests are refused, running ones may finish, and no process or file remains."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.requests import COMPLETIONS, ENDLESS, chunks_of, completion, error_of, open_stream, take, token_ids
from support.server import START_S, Server, descendants, is_alive, wait_until

signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])


@pytest.fixture
def runtime_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for the socket files of the test's servers. Its path is short, as socket paths must be."""
    with tempfile.TemporaryDirectory(prefix="drain-") as path:
        for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, path)
        yield Path(path)


@pytest.fixture
def server(runtime_home: Path) -> Iterator[Server]:
    with Server("fake", "--drain-timeout", "20") as server:
        yield server


def wait_gone(server: Server, family: set[int], runtime_home: Path) -> None:
    assert server.wait_exit() == 0, server.log
    wait_until(lambda: not any(map(is_alive, family)), "every child process is gone")
    assert list(runtime_home.iterdir()) == []
    assert "Traceback" not in server.log, server.log


@signals
def test_running_requests_finish_when_the_server_stops(server: Server, runtime_home: Path, number: int) -> None:
    """The stream is complete, a new request is refused, and the exit code is 0."""
    assert list(runtime_home.rglob("*")), "socket files lie in the directory that the test watches"
    connection, events = open_stream(server, completion(server, n_tokens=500, return_token_ids=True))
    first = take(events, 2)
    family = descendants(server.process.pid)
    server.process.send_signal(number)
    wait_until(lambda: not server.is_ready(), "it says that it is not ready")
    assert_refused(server)
    with connection:
        assert len(token_ids([*first, *chunks_of(events)])) == 500
    wait_gone(server, family, runtime_home)


def assert_refused(server: Server) -> None:
    try:
        status, answer = server.post(COMPLETIONS, completion(server, n_tokens=1))
    except OSError:
        return
    assert status == 503
    error_of(answer)


@signals
def test_an_idle_server_stops_without_delay(server: Server, runtime_home: Path, number: int) -> None:
    """Idle keep-alive connections do not delay it."""
    with server.connect() as idle:
        idle.request("GET", "/health/ready")
        assert idle.read_answer().status == 200
        family = descendants(server.process.pid)
        server.process.send_signal(number)
        wait_gone(server, family, runtime_home)


def test_running_requests_are_ended_when_the_drain_time_is_over(runtime_home: Path) -> None:
    """Streams get an error event, other requests an error status; then the server stops as usual."""
    with Server("fake", "--drain-timeout", "0.5", "--max-running", "2") as server:
        streams = [open_stream(server, completion(server, n_tokens=ENDLESS)) for _ in range(2)]
        plain = server.connect()
        plain.request("POST", COMPLETIONS, completion(server, n_tokens=ENDLESS))
        wait_until(lambda: server.stats()["engine"]["waiting"] == 1, "one waits")
        family = descendants(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        for connection, events in streams:
            *_, error, end = events
            assert end == "[DONE]"
            assert error_of(json.loads(error))["code"] == "draining"
            connection.finish()
        answer = plain.read_answer()
        plain.finish()
        assert answer.status == 503
        assert error_of(answer.json())["code"] == "draining"
        wait_gone(server, family, runtime_home)


def test_a_second_signal_does_not_wait_for_running_requests(server: Server, runtime_home: Path) -> None:
    connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
    take(events, 1)
    family = descendants(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not server.is_ready(), "it drains")
    server.process.send_signal(signal.SIGTERM)
    server.wait_exit(10)
    wait_until(lambda: not any(map(is_alive, family)), "every child process is gone")
    assert list(runtime_home.iterdir()) == []
    connection.finish()


def test_every_process_ends_in_order_when_the_terminal_interrupts_the_group(runtime_home: Path) -> None:
    """Ctrl-C reaches every process of the terminal, not only the supervisor. The stop is still orderly."""
    with Server("fake") as server:
        family = descendants(server.process.pid)
        connection, events = open_stream(server, completion(server, n_tokens=500, return_token_ids=True))
        first = take(events, 1)
        for pid in {*family, server.process.pid}:
            os.kill(pid, signal.SIGINT)
        with connection:
            assert len(token_ids([*first, *chunks_of(events)])) == 500
        wait_gone(server, family, runtime_home)


@signals
def test_many_signals_end_it_in_order(server: Server, runtime_home: Path, number: int) -> None:
    """The exit code is 0, however many signals come and however late."""
    connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
    with connection:
        take(events, 1)
        family = descendants(server.process.pid)
        while server.process.poll() is None:
            server.process.send_signal(number)
        wait_gone(server, family, runtime_home)


@signals
def test_a_signal_before_it_serves_is_an_orderly_end(runtime_home: Path, number: int) -> None:
    """The signal comes while the children load; they are ended."""
    server = Server("fake")
    wait_until(lambda: "starting" in server.log, "it has begun", START_S)
    family = descendants(server.process.pid)
    while server.process.poll() is None:
        server.process.send_signal(number)
    wait_gone(server, family, runtime_home)


def test_the_exit_code_is_1_when_streams_were_cut(runtime_home: Path) -> None:
    """A stopped API process cannot drain, so its clients get no error."""
    with Server("fake", "--drain-timeout", "0") as server:
        connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
        take(events, 1)
        family = descendants(server.process.pid)
        os.kill(server.pid_of("api"), signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit(30) == 1, server.log
        wait_until(lambda: not any(map(is_alive, family)), "every child process is gone")
        assert list(runtime_home.iterdir()) == []
        connection.finish()
