"""A body straight into the transport, piece by piece: no task is woken between an event and its write.

ASGI's `send` is a coroutine. Through it, every token of every stream wakes a task, which climbs through each layer
around the application and down again; with many streams that is most of what a token costs. So this server's HTTP
protocol offers an extension (https://asgi.readthedocs.io/en/latest/extensions.html): between the head of an answer and
its end, which go through `send` as ever, the owner of the response may write by itself.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sluiceway.api.http.kernel_queue import KernelQueue
from sluiceway.types import Piece

_EXTENSION = "sluiceway.chunks"

_NO_LINGERING = struct.pack("ii", 1, 0)


class ChunkWriter:
    """Of one response. `on_writable` is called whenever there is room again, and when the client has left."""

    __slots__ = ("_cycle", "_flow", "_kernel", "_transport", "is_watched", "on_writable")

    def __init__(self, cycle: RequestResponseCycle, *, unsent_bytes: int = 0) -> None:
        """`unsent_bytes` is how much the kernel may have yet to send; 0: as much as it likes."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._kernel = KernelQueue(cycle.transport, unsent_bytes, self._find_room)
        self.on_writable: Callable[[], None] = _nobody_waits
        self.is_watched = False
        """Whether its owner looks after a client that takes nothing; else the connection does."""

    @property
    def is_writable(self) -> bool:
        """Whether the client is there, and neither the transport nor the kernel holds too much for it."""
        is_full = self._flow.write_paused or self._kernel.is_full
        return not (is_full or self._cycle.disconnected or self._transport.is_closing())

    @property
    def held_bytes(self) -> int:
        """What transport and kernel hold after a write that has filled them, else 0: a loop may hand bytes on at its
        next turn only, so that after any write it seems to hold some."""
        in_transport = self._transport.get_write_buffer_size() if self._flow.write_paused else 0
        return in_transport + (self._kernel.unsent_bytes if self._kernel.is_full else 0)

    @property
    def unsent_bytes(self) -> int:
        """What the transport holds at any other moment, and the kernel."""
        return self._transport.get_write_buffer_size() + self._kernel.unsent_bytes

    def abort(self) -> None:
        """See `break_off`."""
        break_off(self._transport)

    def write(self, piece: Piece) -> None:
        """Hand one piece to the transport. It is not empty, the head was sent, and `is_writable`.

        It is a chunk, unless the head told the length of the body or the client knows no chunks (see `until_close`).
        """
        cycle = self._cycle
        if cycle.chunked_encoding:
            self._transport.write(b"".join((_size_line(len(piece)), piece, b"\r\n")))
        else:
            cycle.expected_content_length -= len(piece)
            self._transport.write(piece)
        self._kernel.wrote(len(piece))

    def _find_room(self) -> None:
        self.on_writable()


def break_off(transport: asyncio.Transport) -> None:
    """End the connection at once, and let go what waits for its client: in the kernel too, which else keeps it."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    transport.abort()


@functools.lru_cache(4096)
def _size_line(n_bytes: int) -> bytes:
    """What goes before a chunk. Most pieces of most streams are of few lengths, and formatting is slow."""
    return b"%x\r\n" % n_bytes


def offer_chunks(scope: Scope, chunks: ChunkWriter) -> None:
    """For the server: let the application write the body of this request's response by itself."""
    scope["extensions"] = {_EXTENSION: chunks}


def chunks_of(scope: Scope) -> ChunkWriter | None:
    """None: the server has no such offer, and everything goes through `send`."""
    chunks: ChunkWriter | None = scope.get("extensions", {}).get(_EXTENSION)
    return chunks


def _nobody_waits() -> None:
    """What `on_writable` does until somebody writes."""
