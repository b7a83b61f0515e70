"""What surrounds every request, whatever answers it: an id, an envelope for what goes wrong, an orderly end.

Two pure ASGI layers. `Edge` names the request (`x-request-id`, the client's if it is sane) and turns an exception that
nobody expected into a 500 in the usual envelope. `Linger` closes a connection whose request was not read to its end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.api.http.body import header_of
from sluiceway.api.http.head import send_refusal
from sluiceway.api.http.protocol import LINGER_BYTES_PER_S, LINGER_IDLE_S, LINGER_S, MAX_LINGERING
from sluiceway.refusals import INTERNAL_ERROR

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")

LINGER_BYTES = 1 << 30
"""How many unwanted bytes a client may still send. `http_protocol` bounds their time and speed."""


def request_id_of(scope: Scope) -> str:
    """The id that `Edge` gave to this request."""
    request_id: str = scope["state"]["request_id"]
    return request_id


class Edge:
    """See the module's docstring."""

    def __init__(self, app: ASGIApp, *, new_id: Callable[[], str], log: FilteringBoundLogger) -> None:
        self._app = app
        self._new_id = new_id
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header_of(scope, b"x-request-id")
        request_id = given if given is not None and _SANE_ID.fullmatch(given) else self._new_id().encode()
        scope["state"] = {**scope.get("state", {}), "request_id": request_id.decode()}
        has_started = False

        async def send_named(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            self._log.exception("request failed", request_id=request_id.decode(), path=scope["path"])
            if has_started:
                raise  # the server breaks the connection off, so that the client does not take the rest for the whole
            await send_refusal(send_named, INTERNAL_ERROR)


class Linger:
    """Ends an answer to a request whose body was not read, or not to its end, by closing the connection.

    Closing with unread bytes makes the kernel reset the connection, and the reset can overtake the answer. So the rest
    is read and thrown away first, within bounds, while the client has all of the answer already.
    https://www.rfc-editor.org/rfc/rfc9112#section-9.6
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._n_lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_lingering(message: Message) -> None:
            if is_read:
                await send(message)
            elif message["type"] == "http.response.start":
                await send({**message, "headers": [*message["headers"], (b"connection", b"close")]})
            elif message.get("more_body", False):
                await send(message)
            else:
                await send({**message, "more_body": True})
                await self._discard(receive)
                await send({"type": "http.response.body"})

        await self._app(scope, receive_noting, send_lingering)

    async def _discard(self, receive: Receive) -> None:
        if self._n_lingering >= MAX_LINGERING:
            return
        self._n_lingering += 1
        try:
            async with asyncio.timeout(LINGER_S):
                await _read_all(receive)
        except TimeoutError:
            return
        finally:
            self._n_lingering -= 1


def _has_body(scope: Scope) -> bool:
    return header_of(scope, b"transfer-encoding") is not None or header_of(scope, b"content-length") not in (None, b"0")


async def _read_all(receive: Receive) -> None:
    """Raises `TimeoutError` where nothing comes for a while."""
    n_bytes = 0
    while n_bytes < LINGER_BYTES:
        async with asyncio.timeout(LINGER_IDLE_S):
            message = await receive()
        n_new_bytes = len(message.get("body", b""))
        n_bytes += n_new_bytes
        if not message.get("more_body", False):
            return
        await asyncio.sleep(n_new_bytes / LINGER_BYTES_PER_S)
