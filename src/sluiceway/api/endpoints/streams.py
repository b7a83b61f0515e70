"""The endpoints below `/v1/streams`: a caller lists its streams, reads one, and cancels one."""

from __future__ import annotations

from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from sluiceway.api.context import AppContext
from sluiceway.api.endpoints.cancels import Cancels
from sluiceway.api.endpoints.resume import ResumeEndpoint
from sluiceway.api.http.head import json_head, send_head
from sluiceway.api.http.request import caller_of, header_of, pass_over_body
from sluiceway.api.responses.response import Response
from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.common.errors import refusal_for_status
from sluiceway.protocols.native.streams import list_body, receipt_body, record_body, stream_not_found

MAX_LISTED = 1000
"""How many streams one list has. Writing a longer list would hold up tokens for more than a few milliseconds."""
USUALLY_LISTED = 100

_EVENTS = b"text/event-stream"
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")


class ListEndpoint:
    """GET /v1/streams?limit=N: the newest N streams of the caller, ended ones first."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            limit = _limit_of(scope)
        except RequestError as error:
            await self._context.refuse(error.refusal, scope, send)
            return
        context = self._context
        records = context.dispatcher.registry.records(caller_of(scope))
        await _send_json(send, list_body(records[-limit:], context.now_s() - context.dispatcher.clock()))


class StreamEndpoint:
    """GET /v1/streams/{stream_id}: the record of a stream; for a client that accepts events, the stream itself."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._resume = ResumeEndpoint(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"accept" and _EVENTS in value.lower() for name, value in scope["headers"]):
            await self._resume(scope, receive, send)
            return
        context, stream_id = self._context, scope["path_params"]["stream_id"]
        found = context.dispatcher.registry.find(stream_id, caller_of(scope))
        if found is None:
            await self._context.refuse(stream_not_found(stream_id), scope, send)
            return
        record = found.record if isinstance(found, Response) else found
        await _send_json(send, record_body(record, context.now_s() - context.dispatcher.clock()))


class CancelEndpoint:
    """POST /v1/streams/{stream_id}/cancel: answers 200 with a receipt after the stream has stopped."""

    def __init__(self, context: AppContext, cancels: Cancels) -> None:
        self._context = context
        self._cancels = cancels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_no_form(scope)
            await pass_over_body(receive)
            receipt = await self._cancels.cancel(scope["path_params"]["stream_id"], caller_of(scope))
        except RequestError as error:
            await self._context.refuse(error.refusal, scope, send)
            return
        await _send_json(send, receipt_body(receipt))


def _limit_of(scope: Scope) -> int:
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    value, *others = query.get("limit", [str(USUALLY_LISTED)])
    if others:
        raise invalid(f"`limit` is given {1 + len(others)} times; give it once.", "limit")
    if value.isascii() and value.isdigit() and len(value) <= len(str(MAX_LISTED)) and 1 <= int(value) <= MAX_LISTED:
        return int(value)
    raise invalid(f"`limit` must be an integer from 1 to {MAX_LISTED}.", "limit")


def _check_no_form(scope: Scope) -> None:
    """Refuse forms: a page of another site can send one without permission, and must not cancel anything."""
    label = (header_of(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if label in _FORMS:
        message = "The request must not be a form: send it without a body, or with `Content-Type: application/json`."
        raise RequestError(msgspec.structs.replace(refusal_for_status(415, message), status=400))


async def _send_json(send: Send, body: bytes) -> None:
    await send_head(send, json_head(len(body)))
    await send({"type": "http.response.body", "body": body})
