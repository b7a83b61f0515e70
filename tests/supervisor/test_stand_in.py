"""The stand-in answers connections while there is no API process."""

from __future__ import annotations

import errno
import queue
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from sluiceway.runtime.listener import bind, listen
from sluiceway.supervisor.stand_in import StandIn
from support.raw_http import RawConnection


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listener:
        listen(listener)
        yield listener


class ExhaustedListener(socket.socket):
    """A listening socket that fails to accept connections as if no more files could be opened."""

    failures: ClassVar[queue.SimpleQueue[OSError]]
    attempts: ClassVar[queue.SimpleQueue[str]]

    def accept(self) -> tuple[socket.socket, Any]:
        self.attempts.put("attempt")
        if not self.failures.empty():
            raise self.failures.get()
        return super().accept()


@pytest.fixture
def exhausted(listener: socket.socket) -> Iterator[ExhaustedListener]:
    ExhaustedListener.failures, ExhaustedListener.attempts = queue.SimpleQueue(), queue.SimpleQueue()
    with ExhaustedListener(fileno=listener.dup().detach()) as exhausted:
        yield exhausted


def ask(listener: socket.socket, path: str = "/health/ready", body: object = None) -> RawConnection:
    connection = RawConnection(listener.getsockname()[1], timeout_s=120.0)
    connection.request("GET" if body is None else "POST", path, body)
    return connection


def assert_refused(connection: RawConnection) -> None:
    with connection:
        answer = connection.read_answer()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1" and answer.headers["connection"] == "close"
        assert answer.json()["error"]["code"] == "api_unavailable"


def test_waiting_and_new_connections_are_answered(listener: socket.socket) -> None:
    """With the usual error body, also if the request has a body that is not read."""
    waiting = [ask(listener), ask(listener, "/v1/completions", {"prompt": "x" * 30_000})]
    stand_in = StandIn(listener)
    stand_in.start()
    stand_in.start()
    for connection in [*waiting, ask(listener)]:
        assert_refused(connection)
    stand_in.stop()
    stand_in.stop()


def test_silent_connection_is_answered_and_delays_no_other(listener: socket.socket) -> None:
    stand_in = StandIn(listener)
    stand_in.start()
    with socket.create_connection(listener.getsockname(), timeout=120.0) as silent:
        assert_refused(ask(listener))
        assert silent.recv(4096).startswith(b"HTTP/1.1 503 ")
    stand_in.stop()


def test_stand_in_can_be_started_again(listener: socket.socket) -> None:
    """The API process may fail more than once. The socket stays open."""
    stand_in = StandIn(listener)
    for _ in range(2):
        stand_in.start()
        assert_refused(ask(listener))
        stand_in.stop()
    assert listener.getsockname()[1] > 0


def test_every_connection_is_answered_when_the_stand_in_stops(listener: socket.socket) -> None:
    """By it, or by the next one. A connection that was accepted but not answered would wait for ever."""
    for _ in range(20):
        stand_in, last = StandIn(listener), StandIn(listener)
        stand_in.start()
        connections = [ask(listener) for _ in range(8)]
        stand_in.stop()
        last.start()
        for connection in connections:
            assert_refused(connection)
        last.stop()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_stand_in_accepts_again_after_a_pause_when_no_file_could_be_opened(
    exhausted: ExhaustedListener, number: int
) -> None:
    for _ in range(3):
        exhausted.failures.put(OSError(number, "exhausted"))
    stand_in = StandIn(exhausted, accept_pause_s=0.0)
    connection = ask(exhausted)
    stand_in.start()
    assert_refused(connection)
    stand_in.stop()
    assert exhausted.attempts.qsize() == 4


def test_stand_in_does_not_spin_when_no_file_can_be_opened(exhausted: ExhaustedListener) -> None:
    """It accepts nothing during the pause, though connections wait."""
    exhausted.failures.put(OSError(errno.EMFILE, "exhausted"))
    stand_in, other = StandIn(exhausted, accept_pause_s=3600.0), StandIn(exhausted)
    connections = [ask(exhausted) for _ in range(3)]
    stand_in.start()
    exhausted.attempts.get(timeout=120.0)
    assert exhausted.failures.empty() and exhausted.attempts.empty()
    stand_in.stop()
    other.start()
    for connection in connections:
        assert_refused(connection)
    assert exhausted.attempts.qsize() == len(connections)
    other.stop()


def test_other_errors_of_accept_are_ignored(exhausted: ExhaustedListener) -> None:
    """The client may have gone, or the API process may have been quicker."""
    exhausted.failures.put(OSError(errno.ECONNABORTED, "aborted"))
    stand_in = StandIn(exhausted, accept_pause_s=3600.0)
    connection = ask(exhausted)
    stand_in.start()
    assert_refused(connection)
    stand_in.stop()
