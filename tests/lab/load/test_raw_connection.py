"""Raw connections, to servers that the tests script."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sluiceway_lab.load.calls import Target
from sluiceway_lab.load.raw_connection import HungUp, dial, keeping
from sluiceway_lab.load.replies import LoadError
from support.scripted_http import chunk, plain

LIMIT_S = 5.0
Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serving) -> AsyncIterator[Target]:
    """Wait at the end until every connection has ended."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.gather(*tasks)


def saying(raw: bytes) -> Serving:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(raw)
        await writer.drain()

    return serve


def test_request_can_keep_its_connection() -> None:
    request = Target("h", 1).request("GET", "/")
    assert b"Connection: close\r\n" in request
    assert keeping(request) == request.replace(b"Connection: close\r\n", b"")


async def test_replies_are_read_one_by_one() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"ab") + chunk(b"c") + b"0\r\n\r\n"
    async with serving(saying(plain(404, b"no") + chunked)) as target, dial(target) as connection:
        await connection.send(b"x")
        first, second = await connection.read_reply(LIMIT_S), await connection.read_reply(LIMIT_S)
        assert (first.status, first.body, second.body, second.is_whole) == (404, b"no", b"abc", True)
        assert await connection.read_some(LIMIT_S) == b""


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 200", "closed the connection before"),
        (plain(200, b"abc")[:-1], "closed the connection before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n", "no HTTP answer"),
        (b"no\r\n\r\n", "no HTTP answer"),
    ],
)
async def test_reply_that_is_none_is_a_fault(raw: bytes, words: str) -> None:
    async with serving(saying(raw)) as target, dial(target) as connection:
        await connection.send(b"x")
        with pytest.raises(LoadError, match=words):
            await connection.read_reply(LIMIT_S)


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_closed_connection_differs_from_an_incomplete_answer(is_at_once: bool) -> None:

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        (writer.transport.abort if is_at_once else writer.close)()

    async with serving(leave) as target, dial(target) as connection:
        await connection.send(b"xy")  # what is not read makes the end a reset
        with pytest.raises(HungUp, match="had closed the connection without announcing it"):
            await connection.read_reply(LIMIT_S)


async def test_silence_is_a_fault() -> None:

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as target, dial(target) as connection:
        for waiting in (connection.read_reply, connection.read_some, connection.read_rest):
            with pytest.raises(LoadError, match=r"within 0.01 s"):
                await waiting(0.01)


async def test_missing_server_is_an_error() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(LoadError, match="no answer from http://127.0.0.1:"):
            async with dial(Target("127.0.0.1", unheard.getsockname()[1])):
                pass


async def test_server_tells_an_order_to_leave_from_a_reset() -> None:
    ends: asyncio.Queue[str] = asyncio.Queue()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
            ends.put_nowait("end")
        except ConnectionResetError:
            ends.put_nowait("reset")

    async with serving(watch) as target:
        async with dial(target) as connection:
            connection.finish()
            assert await ends.get() == "end"
        async with dial(target) as connection:
            connection.reset()
            assert await ends.get() == "reset"


async def test_narrow_connection_that_is_not_read_stops_its_writer() -> None:
    """The writer stops long before two megabytes. Later the reader gets everything."""
    n_bytes, n_piece = 1 << 21, 1 << 14
    sent_bytes = 0

    def write(listener: socket.socket, is_stalled: threading.Event, has_stopped: threading.Event) -> None:
        """Write until the kernel takes no more, then the rest."""
        nonlocal sent_bytes
        peer, _ = listener.accept()
        with peer:
            is_stalled.wait(LIMIT_S)
            peer.setblocking(False)
            try:
                while sent_bytes < n_bytes:
                    sent_bytes += peer.send(b"x" * n_piece)
            except BlockingIOError:
                pass
            has_stopped.set()
            peer.settimeout(LIMIT_S)
            peer.sendall(b"x" * (n_bytes - sent_bytes))

    is_stalled, has_stopped = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        writing = asyncio.create_task(asyncio.to_thread(write, listener, is_stalled, has_stopped))
        async with dial(Target("127.0.0.1", listener.getsockname()[1]), is_narrow=True) as connection:
            connection.stall()
            is_stalled.set()
            assert await asyncio.to_thread(has_stopped.wait, LIMIT_S)
            assert sent_bytes < n_bytes / 4
            connection.resume()
            assert len(await connection.read_rest(LIMIT_S)) == n_bytes
        await writing


async def test_received_and_unread_bytes_are_counted() -> None:

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"seven..")
        await reader.read(1)

    async with serving(serve) as target, dial(target) as connection:
        connection.stall()
        await connection.send(b"?")
        raw = connection.fileno()
        assert (await asyncio.to_thread(select.select, [raw], [], [], LIMIT_S))[0]
        assert connection.unread_bytes == 7
        await connection.send(b"!")
        connection.resume()
        assert await connection.read_some(LIMIT_S) == b"seven.."
        assert connection.unread_bytes == 0


async def test_rest_ends_with_a_reset_too() -> None:

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with serving(cut) as target, dial(target) as connection:
        await connection.send(b"xy")
        assert await connection.read_rest(LIMIT_S) == b""
