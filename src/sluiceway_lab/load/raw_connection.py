"""A connection that does what polite clients do not: stop reading, leave in order or at once, ask several times."""

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
from sluiceway_lab.load.replies import LoadError, Reply, parse_reply

_HEAD_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_READ_BYTES = 1 << 16
_SEND_S = 30.0
_NARROW_BYTES = 4096
_NARROW_SEGMENT_BYTES = 128
"""The sender's buffer grows with the segment, which is 64 KiB on the loopback interface: there Linux takes 2.8 MB for a
reader that has stopped before the server feels anything; with this, some 40 kB."""
_CLOSE = b"Connection: close\r\n"


class HungUp(LoadError):
    """A connection that should have gone on was closed, and nothing told so before."""


def keeping(request: bytes) -> bytes:
    """The same request, on a connection that outlasts its answer."""
    return request.replace(_CLOSE, b"", 1)


class RawConnection:
    """Every wait has a limit, and raises `LoadError` when it passes or when the server leaves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, target: Target, *, is_narrow: bool = False) -> RawConnection:
        """A narrow one fills up when it is not read. Raises `LoadError` where nobody listens."""
        return cls(*await _connect(target, is_narrow))

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        with _complaints("take the request", _SEND_S):
            async with asyncio.timeout(_SEND_S):
                await self._writer.drain()

    def stall(self) -> None:
        """Read nothing from here on."""
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    async def read_some(self, limit_s: float) -> bytes:
        """Whatever comes next; empty when the server has closed."""
        with _complaints("say more", limit_s):
            async with asyncio.timeout(limit_s):
                return await self._reader.read(_READ_BYTES)

    async def read_rest(self, limit_s: float) -> bytes:
        """All until the server closes, in order or at once. The limit is for each silence."""
        parts = []
        with _complaints("end its answer", limit_s):
            with contextlib.suppress(ConnectionError):
                while part := await asyncio.wait_for(self._reader.read(_READ_BYTES), limit_s):
                    parts.append(part)
        return b"".join(parts)

    async def read_reply(self, limit_s: float) -> Reply:
        """One whole answer, by its framing, and nothing of what follows it. Raises `HungUp` where none begins."""
        with _complaints("answer", limit_s):
            async with asyncio.timeout(limit_s):
                head = await self._read_head()
                parts = [head]
                headers = parse_reply([(0.0, head)]).headers
                if "chunked" in headers.get("transfer-encoding", ""):
                    parts += [part async for part in self._chunks()]
                else:
                    parts.append(await self._reader.readexactly(int(headers.get("content-length", "0"))))
        return parse_reply([(time.perf_counter(), b"".join(parts))])

    async def _read_head(self) -> bytes:
        try:
            return await self._reader.readuntil(_HEAD_END)
        except asyncio.IncompleteReadError as fault:
            if fault.partial:
                raise
        except ConnectionError:
            pass
        raise HungUp("the server had closed the connection without saying so")

    async def _chunks(self) -> AsyncIterator[bytes]:
        is_last = False
        while not is_last:
            size = await self._reader.readuntil(_LINE_END)
            n_bytes = int(size.partition(b";")[0], 16)
            is_last = n_bytes == 0
            yield size + await self._reader.readexactly(n_bytes + len(_LINE_END))

    @property
    def unread_bytes(self) -> int:
        """What our kernel has received, and nobody has read: a server cannot know of it, nor do anything about it."""
        answer = bytearray(4)
        fcntl.ioctl(self._writer.get_extra_info("socket").fileno(), termios.FIONREAD, answer)
        return int.from_bytes(answer, sys.byteorder)

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self._writer.transport)

    def finish(self) -> None:
        """Close in order (FIN)."""
        self._writer.close()

    def reset(self) -> None:
        """Leave at once (RST)."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


@contextlib.asynccontextmanager
async def dial(target: Target, *, is_narrow: bool = False) -> AsyncIterator[RawConnection]:
    """A connection for the length of the block."""
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
def _complaints(what: str, limit_s: float) -> Iterator[None]:
    """Turns what the loop raises into sentences about the server."""
    try:
        yield
    except TimeoutError:
        raise LoadError(f"the server did not {what} within {limit_s:g} s") from None
    except asyncio.IncompleteReadError:
        raise LoadError("the server closed the connection before its answer was whole") from None
    except (asyncio.LimitOverrunError, ValueError) as fault:
        raise LoadError(f"this is no HTTP answer: {fault}") from None
    except ConnectionError as fault:
        raise LoadError(f"the server reset the connection: {fault.strerror or fault}") from None
