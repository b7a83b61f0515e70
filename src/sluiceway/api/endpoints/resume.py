"""The GET twin of a stream: what a reader has missed since its last event, then what follows.

A browser's `EventSource` works on it: it sends the id of its last event when it comes again, and stops at a 204.
https://html.spec.whatwg.org/multipage/server-sent-events.html#the-last-event-id-header
"""

from __future__ import annotations

from typing import assert_never

from starlette.types import Receive, Scope, Send

from sluiceway.api.endpoints.generate import Door
from sluiceway.api.http.body import header_of
from sluiceway.api.http.caller import caller_of
from sluiceway.api.http.head import Head, send_head, stream_head
from sluiceway.api.responses.answer import Answer
from sluiceway.api.responses.registry import GONE
from sluiceway.api.responses.writer import Writer
from sluiceway.errors import Refusal, RequestError, invalid
from sluiceway.protocols.native.streams import stream_not_found
from sluiceway.response.history import StreamRecord
from sluiceway.response.replay import Missed, Place

_LAST_EVENT_ID = "Last-Event-ID"
_NO_CONTENT = Head(204, ())
_NOT_RESUMABLE = Refusal(
    status=410, code="stream_gone", message="This stream is not resumable: of its events nothing is kept."
)
_MAX_DIGITS = 15


class Twin:
    """An ASGI application for a path with `stream_id` in it. Without a last event id it begins at the beginning."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = self._find(scope, last_event_id_of(scope))
        except RequestError as error:
            await self._door.refuse(error.refusal, scope, send)
            return
        if found is None:
            await send_head(send, _NO_CONTENT)
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["method"] == "HEAD":
            await send_head(send, stream_head(found[0].order.stream_id))
            await send({"type": "http.response.body", "body": b""})
            return
        delivery = self._door.hub.delivery
        writer = Writer(delivery, scope, send)
        answer, place = found
        await writer.run(answer, delivery.attach(answer, place, writer), receive)

    def _find(self, scope: Scope, last_event_id: int) -> tuple[Answer, Place] | None:
        """Where to go on; None if nothing follows. Raises `RequestError`."""
        hub = self._door.hub
        stream_id = scope["path_params"]["stream_id"]
        found = hub.streams.find(stream_id, caller_of(scope), hub.now_s)
        match found:
            case Answer(is_numbered=False) | StreamRecord(is_resumable=False):
                raise RequestError(_NOT_RESUMABLE)
            case Answer():
                return _place_in(found, last_event_id)
            case StreamRecord():
                if last_event_id == found.last_event_id:
                    return None
                raise RequestError(GONE)
            case None:
                raise RequestError(stream_not_found(stream_id))
            case _:
                assert_never(found)


def last_event_id_of(scope: Scope) -> int:
    """0 for a reader that has got nothing. Raises `RequestError` for what is no id of ours."""
    sent = header_of(scope, _LAST_EVENT_ID.lower().encode()) or b"0"
    if not sent.isdigit() or len(sent) > _MAX_DIGITS:
        raise invalid(f"`{_LAST_EVENT_ID}` must be the `id` of an event of this stream.", _LAST_EVENT_ID)
    return int(sent)


def _place_in(answer: Answer, last_event_id: int) -> tuple[Answer, Place] | None:
    place = answer.stream.place_after(last_event_id)
    match place:
        case Place():
            return answer, place
        case Missed.AT_END:
            return None
        case Missed.GONE:
            raise RequestError(GONE)
        case Missed.NEVER_SENT:
            raise invalid(f"This stream has sent no event {last_event_id} so far.", _LAST_EVENT_ID)
        case _:
            assert_never(place)
