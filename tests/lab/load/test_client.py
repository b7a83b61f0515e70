"""Requests, raw connections and replies, with servers that the tests script."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load.client import (
    Connection,
    HungUp,
    LoadError,
    Read,
    Recording,
    Target,
    dial,
    get,
    keeping,
    parse_reply,
    record,
    until,
)
from sluiceway_lab.load.transcript import read_answer
from support.scripted_http import STALL, chunk, completion_stream, plain, scripted_server

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Odd:  a : b \r\n\r\n"
CHUNKED = HEAD + b"3\r\nabc\r\n" + b"A;note=1\r\n0123456789\r\n" + b"0\r\n\r\n"
LIMIT_S = 5.0
Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/v1/", Target("127.0.0.1", 8000)),
        ("http://[::1]:1/", Target("::1", 1)),
        ("https://host.example/api/v1", Target("host.example", 443, True, "/api")),
        ("http://host.example", Target("host.example", 80)),
    ],
)
def test_address_is_read(url: str, target: Target) -> None:
    assert Target.parse(url) == target
    assert Target.parse(target.url) == target


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_address_is_refused_when_it_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="^vs: "):
        Target.parse(url, flag="vs")


def test_request_is_whole() -> None:
    head, _, body = Target("h", 1, root="/api", api_key="k").request("POST", "/v1/x", {"a": 1}).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/v1/x HTTP/1.1" and body == b'{"a":1}'
    assert {"Host: h:1", "Connection: close", "Content-Length: 7", "Authorization: Bearer k"} <= set(lines)
    assert b"Content-Length" not in Target("h", 1).request("GET", "/")


async def test_answer_is_recorded_to_its_end() -> None:
    async with scripted_server({"/v1/completions": completion_stream(8)}) as server:
        recording = await record(server.target, server.target.request("POST", "/v1/completions", {"stream": True}))
    times = [recording.started_s, *(at_s for at_s, _ in recording.reads), recording.ended_s]
    assert times == sorted(times)
    assert read_answer(recording).n_tokens == 8
    (path, headers, body), *_ = server.requests
    assert (path, headers["connection"], body) == ("/v1/completions", "close", {"stream": True})


async def test_call_fails_if_no_server_listens() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        target = Target("127.0.0.1", unheard.getsockname()[1])
        with pytest.raises(LoadError, match=f"no answer from {target.url}"):
            await get(target, "/")


async def test_call_fails_and_leaves_when_the_answer_stalls() -> None:
    async with scripted_server({"/": [plain(200, b"abc")[:-1], STALL]}) as server:
        with pytest.raises(LoadError, match=r"has not ended after 0.05 s"):
            await record(server.target, server.target.request("GET", "/"), limit_s=0.05)
        assert server.requests


async def test_small_answer_is_whole_or_a_fault() -> None:
    async with scripted_server({"/good": [plain(200, b"abc")], "/cut": [plain(200, b"abc")[:-1]]}) as server:
        assert (await get(server.target, "/good")).body == b"abc"
        assert (await get(server.target, "/none")).status == 404
        with pytest.raises(LoadError, match="/cut broke off"):
            await get(server.target, "/cut")


async def test_reader_can_leave_in_the_middle() -> None:
    async with scripted_server({"/": [*completion_stream(8)[:3], STALL]}) as server:
        call = await Connection.open(server.target, server.target.request("GET", "/"))
        while call.n_reads < 1:
            await get(server.target, "/none")
        assert not call.is_over
        call.finish()
        recording = await call.end()
        call.finish()
        assert recording.n_bytes > 0


def reads(*pieces: bytes) -> list[Read]:
    """The first piece arrives at 1.0, each other one a second later."""
    return [(float(second), piece) for second, piece in enumerate(pieces, 1)]


def test_chunks_are_taken_apart() -> None:
    reply = parse_reply(reads(CHUNKED))
    assert (reply.status, reply.body, reply.is_whole) == (200, b"abc0123456789", True)
    assert reply.headers == {"transfer-encoding": "chunked", "x-odd": "a : b"}


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_chunks_are_the_same_wherever_they_are_split(cut: int) -> None:
    reply = parse_reply(reads(CHUNKED[:cut], CHUNKED[cut:]))
    assert (reply.body, reply.is_whole) == (b"abc0123456789", True)
    ends = [CHUNKED.index(b"abc") + 3, CHUNKED.index(b"0123456789") + 10]
    assert [at_s for at_s, _ in reply.pieces] == [1.0 if end <= cut else 2.0 for end in ends]


def test_chunks_are_the_same_byte_by_byte() -> None:
    reply = parse_reply(reads(*(CHUNKED[i : i + 1] for i in range(len(CHUNKED)))))
    assert reply.pieces[0] == (float(CHUNKED.index(b"abc") + 3), b"abc")
    assert reply.body == b"abc0123456789"


@pytest.mark.parametrize("kept", [len(HEAD), len(HEAD) + 2, len(HEAD) + 5, len(CHUNKED) - 5])
def test_body_is_not_whole_when_chunks_are_missing(kept: int) -> None:
    reply = parse_reply(reads(CHUNKED[:kept]))
    assert not reply.is_whole and b"abc0123456789".startswith(reply.body)


def test_body_with_a_length_keeps_the_times_of_its_reads() -> None:
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n"
    reply = parse_reply(reads(head[:10], head[10:] + b"ab", b"cdef"))
    assert (reply.status, reply.pieces, reply.is_whole) == (404, [(2.0, b"ab"), (3.0, b"cdef")], True)
    assert not parse_reply(reads(head + b"ab")).is_whole


def test_body_without_a_length_ends_with_the_connection() -> None:
    reply = parse_reply(reads(b"HTTP/1.0 200 OK\r\n\r\nab", b"c"))
    assert (reply.body, reply.is_whole) == (b"abc", True)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "before its answer began"),
        (b"HTTP/1.1 200 OK\r\n", "before its answer began"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 fine\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1\r\n\r\n", "no HTTP answer"),
        (HEAD + b"xyz\r\nabc\r\n", "no HTTP answer"),
    ],
)
def test_answer_is_refused_when_it_is_none(raw: bytes, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        parse_reply(reads(raw))


def test_recording_counts_every_byte() -> None:
    assert Recording(0.0, reads(b"ab", b"cde"), 9.0).n_bytes == 5


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
        connection.send(b"x")
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
        connection.send(b"x")
        with pytest.raises(LoadError, match=words):
            await connection.read_reply(LIMIT_S)


@pytest.mark.parametrize("aborts", [False, True])
async def test_closed_connection_differs_from_an_incomplete_answer(aborts: bool) -> None:

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        (writer.transport.abort if aborts else writer.close)()

    async with serving(leave) as target, dial(target) as connection:
        connection.send(b"xy")  # what is not read makes the end a reset
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
        connection.send(b"?")
        raw = connection.fileno()
        assert (await asyncio.to_thread(select.select, [raw], [], [], LIMIT_S))[0]
        assert connection.unread_bytes == 7
        connection.send(b"!")
        connection.resume()
        assert await connection.read_some(LIMIT_S) == b"seven.."
        assert connection.unread_bytes == 0


async def test_rest_ends_with_a_reset_too() -> None:

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with serving(cut) as target, dial(target) as connection:
        connection.send(b"xy")
        assert await connection.read_rest(LIMIT_S) == b""


async def test_first_true_value_is_returned() -> None:
    values = iter([0, 0, 3, 4])

    async def look() -> int:
        return next(values)

    assert await until(look, "a number", limit_s=60.0, pause_s=0.0) == 3


async def test_limit_is_an_error_that_names_the_condition() -> None:
    async def look() -> bool:
        return False

    with pytest.raises(LoadError, match="^waited 0 s in vain for a miracle$"):
        await until(look, "a miracle", limit_s=0.0, pause_s=0.0)


async def test_steps_after_a_reset_do_nothing() -> None:

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with serving(cut) as target, dial(target) as connection:
        connection.send(b"xy")
        with pytest.raises(LoadError, match="reset the connection"):
            await connection.read_some(LIMIT_S)
        for step in (connection.stall, connection.resume, connection.reset, connection.finish):
            step()
        connection.send(b"z")
        with pytest.raises(HungUp):
            await connection.read_reply(LIMIT_S)
