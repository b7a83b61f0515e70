"""A real HTTP server in the test's own loop, and a client on a bare connection to it."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from sluiceway.api.http.protocol import Buffers
from sluiceway.api.http.server import HttpServer
from sluiceway.runtime.listener import bind

TIMEOUT_S = 120.0


@asynccontextmanager
async def live_http(
    app: ASGIApp, *, http: str | None = None, keep_alive_s: float = 60.0, buffers: Buffers | None = None, **more: Any
) -> AsyncIterator[int]:
    """Serve on a free port of the loopback interface, and yield the port. `http` names another protocol of uvicorn."""
    listener = bind("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    started = asyncio.Event()
    server = HttpServer(app, keep_alive_s=keep_alive_s, on_started=started.set, buffers=buffers or Buffers(), **more)
    if http is not None:
        server.config.http = http
    serving = asyncio.create_task(server.serve([listener]))
    try:
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        yield port
    finally:
        server.stop()
        await serving


@dataclass
class LiveAnswer:
    """A complete answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class LiveClient:
    """One connection. Every wait has a time limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, *, receive_buffer_bytes: int | None = None) -> LiveClient:
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        except BaseException:
            raw.close()
            raise
        reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 16)
        return cls(reader, writer)

    @property
    def port(self) -> int:
        """The server's."""
        port: int = self._writer.get_extra_info("peername")[1]
        return port

    async def send(self, raw: bytes) -> None:
        self._writer.write(raw)
        await self._writer.drain()

    async def request(self, method: str, path: str, body: bytes = b"", *more: str) -> None:
        """Send a whole request; `more` are header lines."""
        await self.send(head(method, path, f"Content-Length: {len(body)}", *more) + body)

    async def read_head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def read_answer(self, *, has_body: bool = True) -> LiveAnswer:
        status, headers = await self.read_head()
        body = b""
        if has_body and headers.get("transfer-encoding") == "chunked":
            while chunk := await self.read_chunk():
                body += chunk
        elif has_body:
            n_bytes = int(headers.get("content-length", "0"))
            body = await asyncio.wait_for(self._reader.readexactly(n_bytes), TIMEOUT_S)
        return LiveAnswer(status, headers, body)

    async def read_chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        line = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), TIMEOUT_S)
        raw = await asyncio.wait_for(self._reader.readexactly(int(line, 16) + 2), TIMEOUT_S)
        return raw[:-2]

    async def read_to_the_end(self) -> bytes:
        """All bytes until the server closes or resets the connection."""
        parts = []
        try:
            while part := await asyncio.wait_for(self._reader.read(1 << 16), TIMEOUT_S):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)

    async def cut_off(self) -> None:
        """Wait, without reading, until the server resets the connection."""
        poller = select.poll()
        poller.register(self._writer.get_extra_info("socket").fileno(), 0)  # errors are always reported
        assert await asyncio.to_thread(poller.poll, TIMEOUT_S * 1000), "the connection is still open"

    def finish(self) -> None:
        """Close the connection (FIN)."""
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection (RST)."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def head(method: str, path: str, *lines: str) -> bytes:
    """Request line and headers, with the blank line."""
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines, "", ""]
    ).encode()
