"""Resumes a stream with GET: a reader gets the events after its last one, and then what follows.

A browser's `EventSource` works with it: it sends the id of its last event when it connects again, and stops at a 204.
https://html.spec.whatwg.org/multipage/server-sent-events.html#the-last-event-id-header
"""

from __future__ import annotations

from typing import assert_never

from starlette.types import Receive, Scope, Send

from sluiceway.api.context import AppContext
from sluiceway.api.http.head import Head, send_head, stream_head
from sluiceway.api.http.request import caller_of, header_of
from sluiceway.api.responses.registry import GONE
from sluiceway.api.responses.response import Response
from sluiceway.api.responses.writer import AsgiWriter
from sluiceway.errors import Refusal, RequestError, invalid
from sluiceway.protocols.native.streams import stream_not_found
from sluiceway.response.backlog import Cursor, Missed
from sluiceway.response.history import StreamRecord

_LAST_EVENT_ID = "Last-Event-ID"
_NO_CONTENT = Head(204, ())
_NOT_RESUMABLE = Refusal(
    status=410, code="stream_gone", message="This stream cannot be resumed: none of its events is kept."
)
_MAX_DIGITS = 15


class ResumeEndpoint:
    """The ASGI application for a path with a `stream_id`. Without `Last-Event-ID` it begins with the first event."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = self._find(scope, last_event_id_of(scope))
        except RequestError as error:
            await self._context.refuse(error.refusal, scope, send)
            return
        if found is None:
            await send_head(send, _NO_CONTENT)
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["method"] == "HEAD":
            await send_head(send, stream_head(found[0].spec.stream_id))
            await send({"type": "http.response.body", "body": b""})
            return
        writer = AsgiWriter(scope, send)
        response, cursor = found
        await writer.run(response, response.attach(cursor, writer), receive)

    def _find(self, scope: Scope, last_event_id: int) -> tuple[Response, Cursor] | None:
        """The response, and where to go on; None if nothing follows. Raises `RequestError`."""
        stream_id = scope["path_params"]["stream_id"]
        found = self._context.dispatcher.registry.find(stream_id, caller_of(scope))
        match found:
            case Response(is_numbered=False) | StreamRecord(is_resumable=False):
                raise RequestError(_NOT_RESUMABLE)
            case Response():
                return _cursor_in(found, last_event_id)
            case StreamRecord():
                if last_event_id == found.last_event_id:
                    return None
                raise RequestError(GONE)
            case None:
                raise RequestError(stream_not_found(stream_id))
            case _:
                assert_never(found)


def last_event_id_of(scope: Scope) -> int:
    """The value of `Last-Event-ID`, or 0 without it. Raises `RequestError` if it is not an event id of this server."""
    sent = header_of(scope, _LAST_EVENT_ID.lower().encode()) or b"0"
    if not sent.isdigit() or len(sent) > _MAX_DIGITS:
        raise invalid(f"`{_LAST_EVENT_ID}` must be the `id` of an event of this stream.", _LAST_EVENT_ID)
    return int(sent)


def _cursor_in(response: Response, last_event_id: int) -> tuple[Response, Cursor] | None:
    cursor = response.stream.cursor_after(last_event_id)
    match cursor:
        case Cursor():
            return response, cursor
        case Missed.AT_END:
            return None
        case Missed.GONE:
            raise RequestError(GONE)
        case Missed.NEVER_SENT:
            raise invalid(f"This stream has sent no event {last_event_id} so far.", _LAST_EVENT_ID)
        case _:
            assert_never(cursor)
