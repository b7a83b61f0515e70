"""Writes pieces of a body straight to the transport, so that no task wakes between an event and its write.

ASGI's `send` is a coroutine. Through it, every token of every stream would wake a task and pass each layer around the
application; with many streams that is most of the cost of a token. So the HTTP protocol of this server offers an
extension (https://asgi.readthedocs.io/en/latest/extensions.html): the head of a response and its end go through `send`;
between them the application may write by itself.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
import sys
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sluiceway.api.http.kernel_queue import KernelQueue
from sluiceway.types import Piece

_EXTENSION = "sluiceway.chunks"

_NO_LINGERING = struct.pack("ii", 1, 0)


class ChunkWriter:
    """Writes the body of one response. Calls `on_writable` when there is room again, and when the client has left."""

    __slots__ = (
        "_ask_after_bytes",
        "_cycle",
        "_flow",
        "_kernel",
        "_n_unasked",
        "_transport",
        "is_watched",
        "on_writable",
    )

    def __init__(self, cycle: RequestResponseCycle, *, unsent_bytes: int = 0) -> None:
        """`unsent_bytes` bounds what the kernel has yet to send; 0: no bound."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._kernel = KernelQueue(cycle.transport, unsent_bytes, self._find_room)
        self._ask_after_bytes = unsent_bytes // 2 or sys.maxsize
        """The kernel is asked once for several events, since that takes a system call."""
        self._n_unasked = 0
        self.on_writable: Callable[[], None] = _ignore
        self.is_watched = False
        """True when the writer watches for a client that takes nothing; else the connection does."""

    @property
    def is_writable(self) -> bool:
        """True while the client is there, and neither the transport nor the kernel holds too much for it."""
        is_full = self._flow.write_paused or self._kernel.is_full
        return not (is_full or self._cycle.disconnected or self._transport.is_closing())

    @property
    def held_bytes(self) -> int:
        """Bytes that the transport and the kernel hold if a write has filled them, else 0.

        A loop may pass bytes on in its next turn only. So after any write the transport seems to hold some.
        """
        in_transport = self._transport.get_write_buffer_size() if self._flow.write_paused else 0
        return in_transport + (self._kernel.unsent_bytes if self._kernel.is_full else 0)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport and the kernel hold, at any moment but right after a write."""
        return self._transport.get_write_buffer_size() + self._kernel.unsent_bytes

    def abort(self) -> None:
        """Break the connection off."""
        break_off(self._transport)

    def write(self, piece: Piece) -> int:
        """Hand one piece to the transport, after the head and while `is_writable`. Returns `held_bytes`.

        The piece is not empty. It is sent as a chunk, unless the head has the length of the body, or the client knows
        no chunks (see `until_close`).
        """
        cycle = self._cycle
        if cycle.chunked_encoding:
            self._transport.write(b"".join((_size_line(len(piece)), piece, b"\r\n")))
        else:
            cycle.expected_content_length -= len(piece)
            self._transport.write(piece)
        self._n_unasked += len(piece)
        if self._n_unasked >= self._ask_after_bytes:
            self._kernel.wrote(self._n_unasked)
            self._n_unasked = 0
        return self.held_bytes if self._flow.write_paused or self._kernel.is_full else 0

    def _find_room(self) -> None:
        self.on_writable()


def break_off(transport: asyncio.Transport) -> None:
    """End the connection immediately, and drop what waits for its client, also in the kernel."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    transport.abort()


@functools.lru_cache(4096)
def _size_line(n_bytes: int) -> bytes:
    """The line before a chunk. It is cached, because formatting is slow and most pieces have one of few lengths."""
    return b"%x\r\n" % n_bytes


def offer_chunks(scope: Scope, chunks: ChunkWriter) -> None:
    """Let the application write the body of the response to this request by itself."""
    scope["extensions"] = {_EXTENSION: chunks}


def chunks_of(scope: Scope) -> ChunkWriter | None:
    """The writer that the server offers; None if everything must go through `send`."""
    chunks: ChunkWriter | None = scope.get("extensions", {}).get(_EXTENSION)
    return chunks


def _ignore() -> None:
    """Do nothing: `on_writable` before a writer is set."""
