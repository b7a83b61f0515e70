"""A relay in front of a server. It cuts connections after a number of bytes, in order or abruptly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from sluiceway_lab.load.calls import Target

_READ_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut after this many bytes of the answer's body, HTTP framing included."""

    n_bytes: int
    resets: bool


Choose = Callable[[str], Cut | None]
"""Chooses, by the first line of a request (`GET /path HTTP/1.1`), how its answer is cut; None if it is not."""


@dataclass(slots=True)
class Relay:
    """Forwards requests, one for each connection, as nginx sends them by default."""

    upstream: Target
    choose: Choose
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def target(self) -> Target:
        return replace(self.upstream, host="127.0.0.1", port=self.port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._forward(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_HEAD_END)
        cut = self.choose(head.partition(b"\r\n")[0].decode("latin-1"))
        answers, asks = await asyncio.open_connection(self.upstream.host, self.upstream.port)
        try:
            asks.write(head)
            async with asyncio.TaskGroup() as both:
                asking = both.create_task(_copy(reader, asks))
                both.create_task(_answer(answers, writer, cut)).add_done_callback(lambda _: asking.cancel())
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            asks.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward until the client has left; then leave the server."""
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


@contextlib.asynccontextmanager
async def relay(upstream: Target, choose: Choose) -> AsyncIterator[Relay]:
    """Run a relay on a free port of this machine for the length of the block."""
    made = Relay(upstream, choose)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.end()
