"""A connection for unusual clients: they stop reading, leave in order or abruptly, or send several requests."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from typing import cast

from sluiceway_lab.load.calls import Target
from sluiceway_lab.load.replies import LoadError, Reply, ReplyParser

_READ_BYTES = 1 << 16
_SEND_S = 30.0
_NARROW_BYTES = 4096
_NARROW_SEGMENT_BYTES = 128
"""The sender's buffer grows with the segment size, which is 64 KiB on the loopback interface. With that, Linux takes
2.8 MB for a stopped reader before the server notices. With 128 bytes it takes about 40 kB."""
_CLOSE = b"Connection: close\r\n"


class HungUp(LoadError):
    """The server closed a connection that it had not announced to close."""


def keeping(request: bytes) -> bytes:
    """Return the same request, for a connection that stays open after the answer."""
    return request.replace(_CLOSE, b"", 1)


class RawConnection:
    """A TCP connection whose every step the caller controls. h11 parses the answers.

    Every wait has a limit. It raises `LoadError` when the limit passes or the server leaves.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""
        """What was read after the end of an answer."""

    @classmethod
    async def open(cls, target: Target, *, is_narrow: bool = False) -> RawConnection:
        """A narrow connection has small buffers, so that the server notices soon that nothing is read.

        Raises `LoadError` if no server listens.
        """
        return cls(*await _connect(target, is_narrow))

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        with _as_load_errors("take the request", _SEND_S):
            async with asyncio.timeout(_SEND_S):
                await self._writer.drain()

    def stall(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    async def read_some(self, limit_s: float) -> bytes:
        """Return what comes next; empty if the server has closed."""
        with _as_load_errors("say more", limit_s):
            async with asyncio.timeout(limit_s):
                return await self._read()

    async def read_rest(self, limit_s: float) -> bytes:
        """Return all until the server closes or resets the connection. The limit is for each silence."""
        parts = []
        with _as_load_errors("end its answer", limit_s), contextlib.suppress(ConnectionError):
            while part := await asyncio.wait_for(self._read(), limit_s):
                parts.append(part)
        return b"".join(parts)

    async def read_reply(self, limit_s: float) -> Reply:
        """Return one complete answer. Raises `HungUp` if the server closes before it begins."""
        parser, n_bytes = ReplyParser(), 0
        with _as_load_errors("answer", limit_s):
            async with asyncio.timeout(limit_s):
                while not parser.is_whole:
                    try:
                        raw = await self._read()
                    except ConnectionError:
                        if n_bytes:
                            raise
                        raw = b""
                    if not raw and not n_bytes:
                        raise HungUp("the server had closed the connection without announcing it")
                    n_bytes += len(raw)
                    parser.feed(time.perf_counter(), raw)
                    if not raw and not parser.is_whole:
                        raise LoadError("the server closed the connection before its answer was whole")
        self._rest = parser.rest
        return parser.reply()

    async def _read(self) -> bytes:
        if self._rest:
            raw, self._rest = self._rest, b""
            return raw
        return await self._reader.read(_READ_BYTES)

    @property
    def unread_bytes(self) -> int:
        """Bytes that our kernel has received and nothing has read. The server cannot know of them."""
        answer = bytearray(4)
        fcntl.ioctl(self.fileno(), termios.FIONREAD, answer)
        return int.from_bytes(answer, sys.byteorder)

    def fileno(self) -> int:
        return cast(int, self._writer.get_extra_info("socket").fileno())

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self._writer.transport)

    def finish(self) -> None:
        """Close in order (FIN)."""
        self._writer.close()

    def reset(self) -> None:
        """Leave abruptly (RST)."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


@contextlib.asynccontextmanager
async def dial(target: Target, *, is_narrow: bool = False) -> AsyncIterator[RawConnection]:
    """Open a connection for the length of the block."""
    connection = await RawConnection.open(target, is_narrow=is_narrow)
    try:
        yield connection
    finally:
        connection.finish()


async def _connect(target: Target, is_narrow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    raw = socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET, socket.SOCK_STREAM)
    raw.setblocking(False)
    if is_narrow:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _NARROW_SEGMENT_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(raw, (target.host, target.port))
        name = target.host if target.is_tls else None
        return await asyncio.open_connection(
            sock=raw, limit=_READ_BYTES, ssl=target.is_tls or None, server_hostname=name
        )
    except OSError as fault:
        raw.close()
        raise LoadError(f"no answer from {target.url}: {fault.strerror or fault}") from fault
    except BaseException:
        raw.close()
        raise


@contextlib.contextmanager
def _as_load_errors(what: str, limit_s: float) -> Iterator[None]:
    """Turn the exceptions of the loop into sentences about the server."""
    try:
        yield
    except TimeoutError:
        raise LoadError(f"the server did not {what} within {limit_s:g} s") from None
    except ConnectionError as fault:
        raise LoadError(f"the server reset the connection: {fault.strerror or fault}") from None
