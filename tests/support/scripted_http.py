"""An HTTP server that sends scripted pieces, with odd splits, stalls and broken streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sluiceway_lab.load.client import Target

STALL = b""
"""In place of a piece: wait until the client has left."""

Pieces = Iterable[bytes]
Answering = Callable[[Any], Pieces]
"""Makes the pieces of an answer from the decoded body of a request."""


@dataclass
class ScriptedServer:
    """`routes` has an answer for each path, or a function that makes one; other paths are 404."""

    port: int = 0
    routes: dict[str, Pieces | Answering] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """Path, headers (names in lower case) and decoded body of each request."""
    n_gone: int = 0
    """How many clients left before their answer was complete, with FIN or RST."""
    answering: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.port)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.answering.add(task)
        try:
            await self._answer(reader, writer)
        except ConnectionError:
            self.n_gone += 1
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        self.answering.remove(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError as fault:
            if fault.partial:
                raise
            return  # browsers open connections before they have a request
        pairs = (line.partition(": ") for line in lines if line)
        headers = {name.lower(): value for name, _, value in pairs}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        path, body = first.split()[1], json.loads(raw) if raw else None
        self.requests.append((path, headers, body))
        found = self.routes.get(path, [plain(404, b'{"error":{"message":"no such page"}}')])
        for piece in found(body) if callable(found) else found:
            if piece == STALL:
                await reader.read()
                raise ConnectionAbortedError
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def scripted_server(routes: dict[str, Pieces | Answering] | None = None) -> AsyncIterator[ScriptedServer]:
    script = ScriptedServer(routes=dict(routes or {}))
    server = await asyncio.start_server(script.serve_one, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    async with server:
        yield script
        # Every client has its answer by now, or has left.
        await asyncio.gather(*script.answering)


def plain(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole answer with its length."""
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def event(data: Any) -> bytes:
    """A server-sent event. Data that is not text is encoded as JSON."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def token(text: str, finish_reason: str | None = None, **fields: Any) -> bytes:
    """An event of a completion."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], **fields})


def usage(n_prompt: int, n_completion: int) -> bytes:
    """The event with the usage, as OpenAI, vLLM and Sluiceway write it."""
    return event({"choices": [], "usage": {"prompt_tokens": n_prompt, "completion_tokens": n_completion}})


DONE = event("[DONE]")


def stream(*events: bytes) -> list[bytes]:
    """A chunked answer, with an event in each chunk."""
    return [STREAM_HEAD, *(chunk(one) for one in events), STREAM_END]


def completion_stream(n_tokens: int, n_prompt: int = 47) -> list[bytes]:
    """A correct stream."""
    tokens = [token(" la") for _ in range(n_tokens - 1)]
    return stream(*tokens, token(" la", "length"), usage(n_prompt, n_tokens), DONE)
