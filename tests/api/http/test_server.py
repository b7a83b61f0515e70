"""The server accepts connections within its file descriptors, and leaves signals alone."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable

import pytest
import uvloop

from sluiceway.api.http.protocol import Buffers
from sluiceway.api.http.server import HttpServer
from support.asgi_driver import Api
from support.live_http import LiveClient, live_http

loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


async def test_it_serves_until_it_is_stopped() -> None:
    """Signal handlers stay as they were. The socket is closed at the end."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with live_http(Api().app) as port:
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        client = await LiveClient.connect(port)
        await client.request("GET", "/health/live")
        answer = await client.read_answer()
        assert answer.status == 200 and "server" not in answer.headers
    assert await client.read_to_the_end() == b""
    client.finish()
    with pytest.raises(ConnectionRefusedError):
        await LiveClient.connect(port)


# Connections for which there is no room.


def free_file() -> int:
    """The number of the next file descriptor."""
    with socket.socket() as probe:
        return probe.fileno()


@loops
@pytest.mark.parametrize("first", [b"GET /health HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n\r\n" + b"x" * 1_000_000, b"x"])
def test_connection_without_room_gets_a_503(loop: Callable[[], asyncio.AbstractEventLoop], first: bytes) -> None:
    """For any input. The connection is served again when there is room."""
    told: list[str] = []

    async def scenario() -> None:
        room = 40
        async with live_http(Api().app, max_files=free_file() + room, on_turned_away=told.append) as port:
            clients = []
            while not told:
                clients.append(await LiveClient.connect(port))
                assert len(clients) < room
                await asyncio.sleep(0)
            await clients[-1].send(first)
            answer = await clients[-1].read_answer()
            assert answer.status == 503 and answer.json()["error"]["code"] == "overloaded"
            assert answer.headers["connection"] == "close" and answer.headers["retry-after"] == "1"
            assert await clients[-1].read_to_the_end() == b""
            await clients[0].request("GET", "/health")
            assert (await clients[0].read_answer()).status == 200
            for client in clients:
                client.finish()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
    assert set(told) == {"EMFILE"}


@loops
def test_connections_of_a_crowd_all_get_an_answer(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Those for which there is not even a file to say no wait in the kernel, until there is one.

    The clients' own files count too.
    """
    told: list[str] = []

    async def ask(port: int) -> int:
        client = await LiveClient.connect(port)
        await client.request("GET", "/health")
        status = (await client.read_answer()).status
        if status == 503:
            client.finish()
        else:
            held.append(client)
        return status

    held: list[LiveClient] = []

    async def scenario() -> None:
        async with live_http(Api().app, max_files=free_file() + 60 + 30, on_turned_away=told.append) as port:
            statuses = await asyncio.gather(*(ask(port) for _ in range(60)))
            assert {*statuses} == {200, 503} and statuses.count(503) == len(told)
            for client in held:
                client.finish()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


@loops
def test_connection_beyond_the_last_file_is_closed(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The process needs the other descriptors itself."""
    told: list[str] = []

    async def scenario() -> None:
        async with live_http(Api().app, max_files=4, on_turned_away=told.append) as port:
            client = await LiveClient.connect(port)
            assert await client.read_to_the_end() == b""
            client.finish()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
    assert told == ["EMFILE"]


class FailingListener(socket.socket):
    """A listener that first fails with these errors."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            raise OSError(self.errors.pop(0), "no")
        return super().accept()


@loops
def test_connections_wait_while_the_system_has_no_room(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Each error is reported, but not one about a single client."""
    told: list[str] = []
    errors = [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM]

    async def scenario() -> None:
        started = asyncio.Event()
        with FailingListener() as listener:
            listener.errors = errors
            listener.bind(("127.0.0.1", 0))
            server = HttpServer(
                Api().app, keep_alive_s=60.0, on_started=started.set, buffers=Buffers(), on_turned_away=told.append
            )
            serving = asyncio.create_task(server.serve([listener]))
            await started.wait()
            client = await LiveClient.connect(listener.getsockname()[1])
            await client.request("GET", "/health")
            assert (await client.read_answer()).status == 200
            client.finish()
            server.stop()
            await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())
    assert told == ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"]
