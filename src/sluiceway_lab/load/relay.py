"""A relay in front of a server. It cuts connections after a number of bytes, in order or abruptly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from sluiceway_lab.load.client import Target

_READ_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut after this many bytes of the answer's body, HTTP framing included."""

    n_bytes: int
    resets: bool


Choose = Callable[[str], Cut | None]
"""Chooses, by the first line of a request (`GET /path HTTP/1.1`), how its answer is cut; None if it is not."""


@contextlib.asynccontextmanager
async def relay(upstream: Target, choose: Choose) -> AsyncIterator[Target]:
    """Forward requests for the length of the block, one for each connection, as nginx sends them by default.

    Yields the address of the relay, on a free port of this machine.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await _forward(upstream, choose, reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield replace(upstream, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    upstream: Target, choose: Choose, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = await reader.readuntil(_HEAD_END)
    cut = choose(head.partition(b"\r\n")[0].decode("latin-1"))
    answers, asks = await asyncio.open_connection(upstream.host, upstream.port)
    asks.write(head)
    asking = asyncio.create_task(_copy(reader, asks))
    try:
        await _answer(answers, writer, cut)
    finally:
        asking.cancel()
        asks.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward until the client has left; then leave the server."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_READ_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut | None) -> None:
    writer.write(await reader.readuntil(_HEAD_END))
    n_left = None if cut is None else cut.n_bytes
    while n_left != 0 and (piece := await reader.read(n_left or _READ_BYTES)):
        writer.write(piece)
        await writer.drain()
        if n_left is not None:
            n_left -= len(piece)
    if cut is not None and n_left == 0 and cut.resets:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
