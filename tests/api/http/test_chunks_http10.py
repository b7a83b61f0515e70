"""Answers to clients of HTTP/1.0, over a real connection."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from sluiceway.api.http.chunks import chunks_of
from support.live_http import TIMEOUT_S, live_http

STREAM = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
PLAIN = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"4")]}


async def answer_of(app: object, version: str, method: str = "GET") -> tuple[bytes, bytes]:
    """Head and body of the answer, when the server has closed."""
    async with live_http(app) as port:  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        raw = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    return head, body


async def streams(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that writes through `send`, then directly, then through `send`."""
    await send(STREAM)
    await send({"type": "http.response.body", "body": b"one ", "more_body": True})
    chunks = chunks_of(scope)
    assert chunks is not None
    chunks.write(b"two ")
    await send({"type": "http.response.body", "body": b"three"})


async def test_stream_has_no_chunks_and_ends_with_the_connection() -> None:
    """The application may use `send` or write directly."""
    head, body = await answer_of(streams, "1.0")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert body == b"one two three"


async def test_stream_of_a_newer_client_has_chunks() -> None:
    """They show that the body is whole."""
    head, body = await answer_of(streams, "1.1")
    assert b"transfer-encoding: chunked" in head
    assert body == b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"


@pytest.mark.parametrize("pieces", [[b"four"], [b"fo", b"ur"]])
async def test_a_length_in_the_head_is_kept(pieces: list[bytes]) -> None:
    """The body may be written in one piece or in several."""

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        await send(PLAIN)
        for place, piece in enumerate(pieces, 1):
            await send({"type": "http.response.body", "body": piece, "more_body": place < len(pieces)})

    head, body = await answer_of(answers, "1.0")
    assert b"content-length: 4" in head.lower() and body == b"four"


async def test_an_empty_last_message_ends_the_answer() -> None:
    """The answer to HEAD is always empty."""

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        await send(STREAM)
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body"})

    assert (await answer_of(answers, "1.0"))[1] == (await answer_of(answers, "1.0", "HEAD"))[1] == b""
