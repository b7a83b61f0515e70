"""Sends requests over connections of its own, and records what arrives with its time. h11 parses the answers.

While a server is measured, the client only stores what it reads. Parsing comes afterwards, because client and server
may share a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import h11
import msgspec

from sluiceway.errors import ConfigError, SluicewayError

LIMIT_S = 600.0
"""A request that takes longer fails."""
_MAX_HEAD_BYTES = 1 << 20
_NARROW_BYTES = 4096
_NARROW_SEGMENT_BYTES = 128
"""The sender's buffer grows with the segment size, which is 64 KiB on the loopback interface. With that, Linux takes
2.8 MB for a stopped reader before the server notices. With 128 bytes it takes about 40 kB."""
_CLOSE = b"Connection: close\r\n"

Read = tuple[float, bytes]
"""What one read from a socket returned, and when, in seconds of a monotonic clock."""
T = TypeVar("T")


class LoadError(SluicewayError):
    """A measured server cannot be reached, refuses a request, breaks off an answer, or does not end it."""


class HungUp(LoadError):
    """The server closed a connection that it had not announced to close."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server. `root` is the path before `/v1`."""

    host: str
    port: int
    is_tls: bool = False
    root: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None, *, flag: str = "url") -> Target:
        """Parse the address of a server, with or without `/v1`. Raises `ConfigError` that names `flag`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as fault:
            raise ConfigError(flag, f"{url!r} is no address: {fault}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(flag, f"must look like http://127.0.0.1:8000, not {url!r}")
        is_tls = parts.scheme == "https"
        root = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, root, api_key)

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.root}"

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the bytes of a request. The server closes the connection after its answer (see `keeping`)."""
        raw = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        fields = {"Host": self.authority, "Connection": "close", **(headers or {})}
        if raw is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        if self.api_key:
            fields["Authorization"] = f"Bearer {self.api_key}"
        http = h11.Connection(h11.CLIENT)
        head = http.send(h11.Request(method=method, target=self.root + path, headers=list(fields.items())))
        return (head or b"") + (raw or b"")


def keeping(request: bytes) -> bytes:
    """Return the same request, for a connection that stays open after the answer."""
    return request.replace(_CLOSE, b"", 1)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer. Header names are in lower case.

    In a chunked body each chunk is a piece, with the time of its last byte. Otherwise each read is a piece.
    """

    status: int
    headers: dict[str, str]
    pieces: list[Read]
    is_whole: bool
    """True if the framing says that the body is complete."""

    @property
    def body(self) -> bytes:
        return b"".join(raw for _, raw in self.pieces)

    def require_ok(self) -> None:
        """Raise `LoadError` with the server's reason if the status is not 200."""
        if self.status != 200:
            raise LoadError(f"the server refused ({self.status}): {complaint(self.body)}")


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was read from one connection, from just before it was opened to its end."""

    started_s: float
    reads: Sequence[Read]
    ended_s: float

    @property
    def n_bytes(self) -> int:
        return sum(len(raw) for _, raw in self.reads)

    def reply(self) -> Reply:
        return parse_reply(self.reads)


class ReplyParser:
    """Reads one HTTP answer, in pieces of any size.

    Raises `LoadError` if the bytes are not an HTTP answer. The last, incomplete chunk of a broken answer is dropped.
    """

    def __init__(self) -> None:
        # h11 accepts an answer only after a request.
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._pieces: list[Read] = []
        self._chunk = bytearray()
        self.is_whole = False

    def feed(self, at_s: float, raw: bytes) -> None:
        """Take bytes as they arrive; empty ones when the server has closed the connection."""
        if not raw and self._status is None:
            return
        try:
            self._http.receive_data(raw)
            while not self.is_whole and not isinstance(event := self._http.next_event(), type(h11.NEED_DATA)):
                self._take(event, at_s)
        except h11.RemoteProtocolError as fault:
            if raw:
                raise LoadError(f"this is no HTTP answer: {fault}") from None

    @property
    def rest(self) -> bytes:
        """What arrived after the end of the answer."""
        return self._http.trailing_data[0]

    def reply(self) -> Reply:
        """Return what has been read so far. Raises `LoadError` if that is less than the head."""
        if self._status is None:
            raise LoadError("the server closed the connection before its answer began")
        return Reply(self._status, self._headers, self._pieces, self.is_whole)

    def _take(self, event: object, at_s: float) -> None:
        match event:
            case h11.Response():
                self._status = event.status_code
                self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            case h11.Data():
                self._chunk += event.data
                if event.chunk_end or "chunked" not in self._headers.get("transfer-encoding", ""):
                    self._pieces.append((at_s, bytes(self._chunk)))
                    self._chunk.clear()
            case h11.EndOfMessage():
                self.is_whole = True


Outcome = Recording | LoadError
"""What became of one request."""


def parse_reply(reads: Sequence[Read]) -> Reply:
    """Parse all that a connection brought until the server closed it. Raises `LoadError` if it is no HTTP answer.

    A body that was cut short is not an error; the reply is then not whole.
    """
    parser = ReplyParser()
    for at_s, raw in reads:
        parser.feed(at_s, raw)
    if not parser.is_whole:
        parser.feed(0.0, b"")
    return parser.reply()


class Connection(asyncio.Protocol):
    """A TCP connection whose every step the caller controls. It keeps each read with its time.

    Every wait has a limit, and raises `LoadError` when the limit passes.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._reads: list[Read] = []
        self._n_taken = 0
        """How many of the reads the caller has taken."""
        self._changed = asyncio.Event()
        self._fault: str | None = None
        """Why the connection was lost; None if it was closed in order."""
        self._started_s = time.perf_counter()
        self._ended_s: float | None = None

    @classmethod
    async def open(cls, target: Target, request: bytes = b"", *, is_narrow: bool = False) -> Connection:
        """Connect, and send the request.

        A narrow connection has small buffers, so that the server notices soon that nothing is read. Raises `LoadError`
        if no server listens.
        """
        connection, loop = cls(), asyncio.get_running_loop()
        tls: dict[str, Any] = {"ssl": True, "server_hostname": target.host} if target.is_tls else {}
        try:
            if is_narrow:
                raw = await _narrow_socket(target)
                await loop.create_connection(lambda: connection, sock=raw, **tls)
            else:
                await loop.create_connection(lambda: connection, target.host, target.port, **tls)
        except OSError as fault:
            raise LoadError(f"no answer from {target.url}: {fault.strerror or fault}") from fault
        connection.send(request)
        return connection

    @property
    def n_reads(self) -> int:
        return len(self._reads)

    @property
    def is_over(self) -> bool:
        """True when either side has closed the connection."""
        return self._ended_s is not None

    @property
    def unread_bytes(self) -> int:
        """Bytes that our kernel has received and nothing has read. The server cannot know of them."""
        answer = bytearray(4)
        fcntl.ioctl(self.fileno(), termios.FIONREAD, answer)
        return int.from_bytes(answer, sys.byteorder)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, raw: bytes) -> None:
        """Send these bytes. If the connection is lost, the next read says so."""
        if raw and not self._transport.is_closing():
            self._transport.write(raw)

    def stall(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self) -> None:
        """Close in order (FIN)."""
        self._transport.close()

    def reset(self) -> None:
        """Leave abruptly (RST)."""
        if not self._transport.is_closing():
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    async def end(self, limit_s: float = LIMIT_S) -> Recording:
        """Wait until the server has closed, and return everything that came."""
        try:
            async with _limit(limit_s, f"the answer has not ended after {limit_s:g} s"):
                while self._ended_s is None:
                    await self._change()
        finally:
            self.finish()
        return Recording(self._started_s, self._reads, self._ended_s)

    async def read_some(self, limit_s: float) -> bytes:
        """Return what comes next; empty if the server has closed. Raises `LoadError` for a reset."""
        async with _limit(limit_s, f"the server did not say more within {limit_s:g} s"):
            raw = await self._next()
        if not raw and self._fault is not None:
            raise LoadError(f"the server reset the connection: {self._fault}")
        return raw

    async def read_rest(self, limit_s: float) -> bytes:
        """Return all until the server closes or resets the connection. The limit is for each silence."""
        parts: list[bytes] = []
        while True:
            async with _limit(limit_s, f"the server did not end its answer within {limit_s:g} s"):
                parts.append(await self._next())
            if not parts[-1]:
                return b"".join(parts)

    async def read_reply(self, limit_s: float) -> Reply:
        """Return one complete answer. Raises `HungUp` if the server closes before it begins."""
        parser, n_bytes = ReplyParser(), 0
        async with _limit(limit_s, f"the server did not answer within {limit_s:g} s"):
            while not parser.is_whole:
                raw = await self._next()
                if not raw and not n_bytes:
                    raise HungUp("the server had closed the connection without announcing it")
                n_bytes += len(raw)
                parser.feed(time.perf_counter(), raw)
                if not raw and not parser.is_whole:
                    raise LoadError("the server closed the connection before its answer was whole")
        if parser.rest:
            self._n_taken -= 1
            self._reads[self._n_taken] = (time.perf_counter(), parser.rest)
        return parser.reply()

    async def _next(self) -> bytes:
        """Return the next read; empty if the connection has ended."""
        while self._n_taken == len(self._reads) and not self.is_over:
            await self._change()
        if self._n_taken == len(self._reads):
            return b""
        self._n_taken += 1
        return self._reads[self._n_taken - 1][1]

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    @property
    def _socket(self) -> socket.socket:
        return cast(socket.socket, self._transport.get_extra_info("socket"))

    # The methods of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.perf_counter(), data))
        self._changed.set()

    def eof_received(self) -> bool:
        """Keep our side open, so that the caller can still choose how to leave. TLS has no such state."""
        self._end()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._fault = exc.strerror or str(exc)
        self._end()

    def _end(self) -> None:
        self._ended_s = self._ended_s or time.perf_counter()
        self._changed.set()


async def _narrow_socket(target: Target) -> socket.socket:
    """Connect a socket with a small buffer and small segments."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    raw = socket.socket(family, kind, protocol)
    try:
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _NARROW_SEGMENT_BYTES)
        await loop.sock_connect(raw, address)
    except BaseException:
        raw.close()
        raise
    return raw


@contextlib.asynccontextmanager
async def _limit(limit_s: float, sentence: str) -> AsyncIterator[None]:
    """Raise `LoadError` with this sentence if the block takes longer."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise LoadError(sentence) from None


@contextlib.asynccontextmanager
async def dial(target: Target, request: bytes = b"", *, is_narrow: bool = False) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block."""
    connection = await Connection.open(target, request, is_narrow=is_narrow)
    try:
        yield connection
    finally:
        connection.finish()


async def record(target: Target, request: bytes, limit_s: float = LIMIT_S) -> Recording:
    """Send a request on a new connection, and record the whole answer."""
    return await (await Connection.open(target, request)).end(limit_s)


async def attempt(target: Target, request: bytes) -> Outcome:
    """Record the whole answer, or return why there is none."""
    try:
        return await record(target, request)
    except LoadError as fault:
        return fault


async def get(target: Target, path: str, limit_s: float = 10.0) -> Reply:
    """Get a small answer. Raises `LoadError` if it is incomplete."""
    reply = (await record(target, target.request("GET", path), limit_s)).reply()
    if not reply.is_whole:
        raise LoadError(f"{target.url}{path} broke off its answer")
    return reply


def complaint(body: bytes) -> str:
    """Return the message of an error in any of the usual forms."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace").strip() or "no reason given"
    return message_of(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


async def until(look: Callable[[], Awaitable[T]], what: str, *, limit_s: float, pause_s: float) -> T:
    """Call `look` until it returns something true, and return that. Raises `LoadError` after `limit_s`."""
    deadline_s = time.perf_counter() + limit_s
    while not (found := await look()):
        if time.perf_counter() > deadline_s:
            raise LoadError(f"waited {limit_s:g} s in vain for {what}")
        await asyncio.sleep(pause_s)
    return found
