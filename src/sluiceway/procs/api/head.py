"""Heads of answers: the status and the headers that go out before the first byte of a body."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sluiceway.errors import Refusal

RawHeaders = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What `http.response.start` carries."""

    status: int
    headers: RawHeaders


STREAM_HEAD = Head(
    200,
    (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx holds a stream back without it
    ),
)


def json_head(n_bytes: int, status: int = 200, more: RawHeaders = ()) -> Head:
    """The head of a whole JSON body."""
    length = (b"content-length", str(n_bytes).encode())
    return Head(status, ((b"content-type", b"application/json"), length, *more))


def refusal_head(n_bytes: int, refusal: Refusal, more: RawHeaders = ()) -> Head:
    """The head of an error, which tells a client when to come again if that is known."""
    if refusal.retry_after_s is not None:
        more = (*more, (b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()))
    return json_head(n_bytes, refusal.status, more)
