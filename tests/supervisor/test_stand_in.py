"""While there is no API process, whoever connects is answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sluiceway.runtime.listener import bind, listen
from sluiceway.supervisor.stand_in import StandIn
from support.raw_http import RawConnection


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listener:
        listen(listener)
        yield listener


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


def test_connections_that_wait_and_those_that_come_are_answered(listener: socket.socket) -> None:
    """In the usual envelope, also where a body was sent that nobody reads."""
    waiting = [ask(listener), ask(listener, "/v1/completions", {"prompt": "x" * 30_000})]
    stand_in = StandIn(listener)
    stand_in.start()
    stand_in.start()
    for connection in [*waiting, ask(listener)]:
        assert_refused(connection)
    stand_in.stop()
    stand_in.stop()


def test_one_that_says_nothing_holds_up_nobody_and_is_answered_too(listener: socket.socket) -> None:
    """After a while, as is one that says half."""
    stand_in = StandIn(listener)
    stand_in.start()
    with socket.create_connection(listener.getsockname(), timeout=120.0) as silent:
        assert_refused(ask(listener))
        assert silent.recv(4096).startswith(b"HTTP/1.1 503 ")
    stand_in.stop()


def test_it_can_be_started_again(listener: socket.socket) -> None:
    """The API process may fail more than once; the socket outlives all of them."""
    stand_in = StandIn(listener)
    for _ in range(2):
        stand_in.start()
        assert_refused(ask(listener))
        stand_in.stop()
    assert listener.getsockname()[1] > 0


def test_whoever_is_accepted_when_it_stops_is_answered(listener: socket.socket) -> None:
    """Or waits for the next: a connection that nobody owns would wait for ever."""
    for _ in range(20):
        stand_in, last = StandIn(listener), StandIn(listener)
        stand_in.start()
        connections = [ask(listener) for _ in range(8)]
        stand_in.stop()
        last.start()
        for connection in connections:
            assert_refused(connection)
        last.stop()
