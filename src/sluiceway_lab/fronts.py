"""Small applications before a server of ours, which deliver its responses as other servers do. For comparison.

::

    client --HTTP--> front (uvicorn) --HTTP--> sluiceway serve

starlette    the framework's own responses: `StreamingResponse` over a generator, which listens for the client while it
             writes; an answer that is not streamed is waited for and then sent, and nothing listens before that
write-only   writes to the end and never listens: the server's `send` says nothing about a client that has left
naive        one task delivers the events of all streams, and waits for each reader: one slow reader holds up all

A front that closes its own request cancels it upstream. Everything that is not a POST is passed on as it is, so that a
front can be asked for the numbers of the server behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "date"})
"""Headers of one connection, which are not forwarded."""

Deliver = Callable[[httpx.Response, Scope, Receive, Send], Awaitable[None]]
"""Sends the response of the server behind to the client of the front."""


async def _starlette(upstream: httpx.Response, scope: Scope, receive: Receive, send: Send) -> None:
    response: Response
    if upstream.headers.get("content-type", "").startswith("text/event-stream"):
        response = StreamingResponse(upstream.aiter_raw(), upstream.status_code)
        response.raw_headers = _passed_on(upstream)
    else:
        response = Response(await upstream.aread(), upstream.status_code)
        response.raw_headers = [*_passed_on(upstream), (b"content-length", b"%d" % len(response.body))]
    await response(scope, receive, send)


async def _write_only(upstream: httpx.Response, scope: Scope, receive: Receive, send: Send) -> None:
    await send(_start(upstream))
    async for piece in upstream.aiter_raw():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


class _NaiveDelivery:
    """Delivers the messages of all responses from one queue in one task."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Send, dict[str, Any], asyncio.Event]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, upstream: httpx.Response, scope: Scope, receive: Receive, send: Send) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._deliver())
        watch = asyncio.create_task(_disconnected(receive))
        pieces = asyncio.create_task(self._enqueue(upstream, send))
        await asyncio.wait((watch, pieces), return_when=asyncio.FIRST_COMPLETED)
        for task in (watch, pieces):
            task.cancel()

    async def _enqueue(self, upstream: httpx.Response, send: Send) -> None:
        self._put(send, _start(upstream))
        async for piece in upstream.aiter_raw():
            self._put(send, {"type": "http.response.body", "body": piece, "more_body": True})
        await self._put(send, {"type": "http.response.body"}).wait()

    def _put(self, send: Send, message: dict[str, Any]) -> asyncio.Event:
        is_sent = asyncio.Event()
        self._queue.put_nowait((send, message, is_sent))
        return is_sent

    async def _deliver(self) -> None:
        while True:
            send, message, is_sent = await self._queue.get()
            with contextlib.suppress(OSError):
                await send(message)
            is_sent.set()


def front_app(kind: str, upstream_url: str) -> ASGIApp:
    """Return the application. Raises `KeyError` for an unknown `kind`; the module's docstring lists them."""
    ways: dict[str, Deliver] = {"starlette": _starlette, "write-only": _write_only, "naive": _NaiveDelivery()}
    deliver = ways[kind]

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        client: httpx.AsyncClient = scope["app"].state.client
        query = f"?{request.url.query}" if request.url.query else ""
        asked = client.build_request(
            request.method,
            scope["path"] + query,
            headers=[(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS],
            content=await request.body(),
        )
        upstream = await client.send(asked, stream=True)
        try:
            await (deliver if request.method == "POST" else _starlette)(upstream, scope, receive, send)
        finally:
            await upstream.aclose()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=upstream_url, timeout=None, limits=limits, trust_env=False) as client:
            app.state.client = client
            yield

    return Starlette(routes=[Mount("/", app=pass_on)], lifespan=lifespan)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _passed_on(upstream: httpx.Response) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in upstream.headers.raw if name.lower().decode() not in _OWN_HEADERS]


def _start(upstream: httpx.Response) -> dict[str, Any]:
    return {"type": "http.response.start", "status": upstream.status_code, "headers": _passed_on(upstream)}


if __name__ == "__main__":
    app = front_app(kind=sys.argv[1], upstream_url=sys.argv[2])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="error", access_log=False)
