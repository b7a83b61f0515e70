"""Writes pieces of a body straight to the transport, so that no task wakes between an event and its write.

ASGI's `send` is a coroutine. Through it, every token of every stream would wake a task and pass each layer around the
application; with many streams that is most of the cost of a token. So the HTTP protocol of this server offers an
extension (https://asgi.readthedocs.io/en/latest/extensions.html): the head of a response and its end go through `send`;
between them the application may write by itself.

This file also bounds the bytes that the kernel has accepted for a connection and not sent yet, so that a reader that
has stopped is seen soon. `TCP_NOTSENT_LOWAT` bounds them where bytes begin a new segment. But the kernel adds bytes
that fit into a waiting segment without a check, and such a segment may be half of the reader's window: 32 KiB of events
of two hundred bytes. So the kernel is asked now and then (`SIOCOUTQNSD`). Once it holds too much, it gets nothing more
until it has sent some. It does not say when that is, so it is asked again soon, and then less and less often.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sluiceway.types import Piece

_EXTENSION = "sluiceway.chunks"

_NO_LINGERING = struct.pack("ii", 1, 0)


_SIOCOUTQNSD = 0x894B
"""Like SIOCOUTQ in https://man7.org/linux/man-pages/man7/tcp.7.html, without the bytes that were sent already."""

_FIRST_PAUSE_S = 0.002
_LAST_PAUSE_S = 0.25


class KernelQueue:
    """Watches one connection. It calls `when_sent` when the kernel was too full and has sent enough."""

    __slots__ = ("_max_bytes", "_pause_s", "_transport", "_when_sent", "is_full")

    def __init__(self, transport: asyncio.Transport, max_bytes: int, when_sent: Callable[[], None]) -> None:
        """`max_bytes` 0: no bound, as on systems that cannot be asked."""
        self._transport = transport
        self._max_bytes = max_bytes if sys.platform == "linux" else 0
        self._when_sent = when_sent
        self._pause_s = _FIRST_PAUSE_S
        self.is_full = False

    @property
    def unsent_bytes(self) -> int:
        """Ask the kernel how many bytes it has not sent."""
        if not self._max_bytes or self._transport.is_closing():
            return 0
        answer = bytearray(4)
        try:
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), _SIOCOUTQNSD, answer)
        except OSError:  # not every Linux has this request; gVisor has not
            self._max_bytes = 0
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def look(self) -> None:
        """Set `is_full` to whether the kernel holds too much, unless that is being watched already."""
        if not self.is_full:
            self._pause_s = _FIRST_PAUSE_S
            self._look()

    def _look(self) -> None:
        self.is_full = self.unsent_bytes > self._max_bytes
        if self.is_full:
            asyncio.get_running_loop().call_later(self._pause_s, self._look_again)
            self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)

    def _look_again(self) -> None:
        self._look()
        if not self.is_full:
            self._when_sent()


class ChunkWriter:
    """Writes the body of one response.

    It calls `on_writable` when there is room again, and `on_lost` when the client leaves.
    """

    __slots__ = (
        "_ask_after_bytes",
        "_cycle",
        "_flow",
        "_kernel",
        "_n_unasked",
        "_transport",
        "is_watched",
        "on_lost",
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
        self.on_lost: Callable[[], None] = _ignore
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

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` when the client leaves; immediately if it has left. Until then the connection is read."""
        self.on_lost = on_lost
        if self._cycle.disconnected:
            on_lost()
        else:
            self._flow.resume_reading()

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
            self._n_unasked = 0
            self._kernel.look()
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
    """Do nothing: what is called before a writer has set its own functions."""


def takes_no_chunks(scope: Scope) -> bool:
    """True for a client of HTTP/1.0."""
    return bool(scope["http_version"] == "1.0")


def until_close(app: ASGIApp, cycle: RequestResponseCycle) -> Any:
    """Wrap `app` for a client of HTTP/1.0: without a length, the end of the connection ends the body.

    A server must not send chunks to such a client (https://www.rfc-editor.org/rfc/rfc9112#section-6.1), but uvicorn
    does. What is left is the oldest way: https://www.rfc-editor.org/rfc/rfc9112#section-6.3. uvicorn and Starlette have
    different types for the same application, hence `Any`.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        is_open_ended = False

        async def send_bare(message: Message) -> None:
            nonlocal is_open_ended
            if message["type"] == "http.response.start":
                is_open_ended = not _tells_length(message)
            if is_open_ended:
                # The cycle checks a body against the length in the head. Here each piece has its own length.
                cycle.chunked_encoding = False
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_bare)

    return run


def _tells_length(message: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
