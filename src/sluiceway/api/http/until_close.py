"""Bodies for clients of HTTP/1.0: where the length is not told, they end with the connection, and nothing frames them.

A server must not send chunks to such a client: https://www.rfc-editor.org/rfc/rfc9112#section-6.1. uvicorn does, so the
body of a stream would reach it with the sizes of the chunks in between. What is left is the oldest way:
https://www.rfc-editor.org/rfc/rfc9112#section-6.3. The connection is closed after every answer to it anyway.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def takes_no_chunks(scope: Scope) -> bool:
    return bool(scope["http_version"] == "1.0")


def until_close(app: ASGIApp, cycle: RequestResponseCycle) -> Any:
    """`app` as `cycle` shall run it for such a client; uvicorn and Starlette have different types for the same."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        is_open_ended = False

        async def send_bare(message: Message) -> None:
            nonlocal is_open_ended
            if message["type"] == "http.response.start":
                is_open_ended = not _tells_length(message)
            if is_open_ended:
                # The cycle holds a body to a length that was told: here to that of each piece by itself.
                cycle.chunked_encoding = False
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_bare)

    return run


def _tells_length(message: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
