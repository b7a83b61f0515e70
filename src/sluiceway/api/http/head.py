"""Heads of answers, the status and the headers that go out before the first byte of a body; and whole refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starlette.types import Send

from sluiceway.errors import Refusal
from sluiceway.protocols.common.wishes import STREAM_ID_HEADER
from sluiceway.protocols.openai.errors import error_body

RawHeaders = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What `http.response.start` carries."""

    status: int
    headers: RawHeaders


_STREAM_HEADERS: RawHeaders = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx holds a stream back without it
)


def stream_id_header(stream_id: str) -> tuple[bytes, bytes]:
    """By this id an answer can be cancelled, asked for and resumed."""
    return STREAM_ID_HEADER.encode(), stream_id.encode()


def stream_head(stream_id: str) -> Head:
    """The head of a stream of events."""
    return Head(200, (*_STREAM_HEADERS, stream_id_header(stream_id)))


def json_head(n_bytes: int, status: int = 200, more: RawHeaders = ()) -> Head:
    """The head of a whole JSON body."""
    length = (b"content-length", str(n_bytes).encode())
    return Head(status, ((b"content-type", b"application/json"), length, *more))


def refusal_head(n_bytes: int, refusal: Refusal, more: RawHeaders = ()) -> Head:
    """The head of an error, which tells a client when to come again if that is known, or not to."""
    if refusal.status == 409:
        more = (*more, (b"x-should-retry", b"false"))  # official SDKs send what conflicts twice more
    if refusal.retry_after_s is not None:
        more = (*more, (b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()))
    return json_head(n_bytes, refusal.status, more)


async def send_head(send: Send, head: Head) -> None:
    await send({"type": "http.response.start", "status": head.status, "headers": list(head.headers)})


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """A whole answer that says why there is no other."""
    body = error_body(refusal)
    await send_head(send, refusal_head(len(body), refusal))
    await send({"type": "http.response.body", "body": body})
