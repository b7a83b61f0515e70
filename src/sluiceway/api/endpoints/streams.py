"""What a caller can learn of its streams, and do to them: ASGI applications for the paths below `/v1/streams`."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from sluiceway.api.endpoints.cancels import Cancels
from sluiceway.api.endpoints.generate import Door
from sluiceway.api.endpoints.resume import Twin
from sluiceway.api.http.body import header_of, pass_over_body
from sluiceway.api.http.caller import caller_of
from sluiceway.api.http.head import json_head, send_head
from sluiceway.api.responses.answer import Answer
from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.native.streams import list_body, receipt_body, record_body, stream_not_found
from sluiceway.protocols.openai.errors import refusal_for_status

MAX_LISTED = 1000
"""Streams in one answer: to write this many takes a few milliseconds, in which no token leaves."""
USUALLY_LISTED = 100

_EVENTS = b"text/event-stream"
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")


class StreamList:
    """GET /v1/streams?limit=N: the last N of the caller's, those that are remembered and then those that are held."""

    def __init__(self, door: Door, wall_s: Callable[[], float]) -> None:
        self._door = door
        self._wall_s = wall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            limit = _limit_of(scope)
        except RequestError as error:
            await self._door.refuse(error.refusal, scope, send)
            return
        now_s = self._door.hub.now_s
        records = self._door.hub.streams.records(caller_of(scope), now_s)
        await _send_json(send, list_body(records[-limit:], self._wall_s() - now_s))


class StreamPage:
    """GET /v1/streams/{stream_id}: how it stands; to a client that accepts events, the stream itself."""

    def __init__(self, door: Door, wall_s: Callable[[], float]) -> None:
        self._door = door
        self._wall_s = wall_s
        self._twin = Twin(door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"accept" and _EVENTS in value.lower() for name, value in scope["headers"]):
            await self._twin(scope, receive, send)
            return
        hub, stream_id = self._door.hub, scope["path_params"]["stream_id"]
        now_s = hub.now_s
        found = hub.streams.find(stream_id, caller_of(scope), now_s)
        if found is None:
            await self._door.refuse(stream_not_found(stream_id), scope, send)
            return
        record = found.record if isinstance(found, Answer) else found
        await _send_json(send, record_body(record, self._wall_s() - now_s))


class StreamCancel:
    """POST /v1/streams/{stream_id}/cancel: 200 only when it has stopped, with a receipt."""

    def __init__(self, door: Door, cancels: Cancels) -> None:
        self._door = door
        self._cancels = cancels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_no_form(scope)
            await pass_over_body(receive)
            receipt = await self._cancels.cancel(scope["path_params"]["stream_id"], caller_of(scope))
        except RequestError as error:
            await self._door.refuse(error.refusal, scope, send)
            return
        await _send_json(send, receipt_body(receipt))


def _limit_of(scope: Scope) -> int:
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    value, *others = query.get("limit", [str(USUALLY_LISTED)])
    if others:
        raise invalid(f"`limit` came {1 + len(others)} times.", "limit")
    if value.isascii() and value.isdigit() and len(value) <= len(str(MAX_LISTED)) and 1 <= int(value) <= MAX_LISTED:
        return int(value)
    raise invalid(f"`limit` must be an integer from 1 to {MAX_LISTED}.", "limit")


def _check_no_form(scope: Scope) -> None:
    """A page of another site can send a form without being asked whether it may, and must not end anything by it."""
    label = (header_of(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if label in _FORMS:
        message = "The request must not be a form: send it without a body, or with `Content-Type: application/json`."
        raise RequestError(msgspec.structs.replace(refusal_for_status(415, message), status=400))


async def _send_json(send: Send, body: bytes) -> None:
    await send_head(send, json_head(len(body)))
    await send({"type": "http.response.body", "body": body})
