"""Heads of responses (status and headers), and whole responses that refuse a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Send

from sluiceway.errors import Refusal
from sluiceway.protocols.common.stream_options import STREAM_ID_HEADER

RawHeaders = tuple[tuple[bytes, bytes], ...]

ErrorBody = Callable[[Refusal], bytes]
"""Makes the body of an error response."""


@dataclass(frozen=True, slots=True)
class Head:
    """The status and the headers of `http.response.start`."""

    status: int
    headers: RawHeaders


_STREAM_HEADERS: RawHeaders = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # without it nginx buffers a stream
)


def stream_id_header(stream_id: str) -> tuple[bytes, bytes]:
    """The header with the id by which a response can be found, cancelled and resumed."""
    return STREAM_ID_HEADER.encode(), stream_id.encode()


def stream_head(stream_id: str) -> Head:
    """The head of a stream of events."""
    return Head(200, (*_STREAM_HEADERS, stream_id_header(stream_id)))


def json_head(n_bytes: int, status: int = 200, more: RawHeaders = ()) -> Head:
    """The head of a whole JSON body."""
    length = (b"content-length", str(n_bytes).encode())
    return Head(status, ((b"content-type", b"application/json"), length, *more))


def refusal_head(n_bytes: int, refusal: Refusal, more: RawHeaders = ()) -> Head:
    """The head of an error. It says when to try again if that is known, or that trying again is useless."""
    if refusal.status == 409:
        more = (*more, (b"x-should-retry", b"false"))  # without it official SDKs send a conflicting request twice more
    if refusal.retry_after_s is not None:
        more = (*more, (b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()))
    return json_head(n_bytes, refusal.status, more)


async def send_head(send: Send, head: Head) -> None:
    """Send a head."""
    await send({"type": "http.response.start", "status": head.status, "headers": list(head.headers)})


async def send_refusal(send: Send, refusal: Refusal, error_body: ErrorBody) -> None:
    """Send a whole response that refuses the request. `error_body` makes the body for its path."""
    body = error_body(refusal)
    await send_head(send, refusal_head(len(body), refusal))
    await send({"type": "http.response.body", "body": body})
