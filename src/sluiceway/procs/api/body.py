"""The body of a POST: JSON by its label, whole, within a size and within a time."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.openai.errors import refusal_for_status


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`timeout_s` is for the whole body: one that trickles in does not hold a connection for ever."""

    max_bytes: int
    timeout_s: float = 60.0


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def sole_header_of(scope: Scope, name: str) -> bytes | None:
    """The header of this name, which means one thing. Raises `RequestError` where it comes more than once."""
    values = [value for key, value in scope["headers"] if key == name.lower().encode()]
    if len(values) > 1:
        raise invalid(f"The header `{name}` came {len(values)} times; it means one thing.", name)
    return bytes(values[0]) if values else None


async def pass_over_body(receive: Receive, max_bytes: int = 64 * 1024, timeout_s: float = 1.0) -> None:
    """Read a body that means nothing, so that the connection can be used again; a larger or slower one is left."""
    with contextlib.suppress(TimeoutError, ClientDisconnect, RequestError):
        async with asyncio.timeout(timeout_s):
            await _read(receive, max_bytes)


async def read_json_body(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    """Raises `RequestError` (400, 408, 413), or `ClientDisconnect` if the client leaves before its body is whole."""
    _check_labels(scope)
    length = header_of(scope, b"content-length")
    if length is not None and int(length) > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _read(receive, limits.max_bytes)
    except TimeoutError:
        raise RequestError(refusal_for_status(408)) from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _check_labels(scope: Scope) -> None:
    label = header_of(scope, b"content-type") or b""
    if label.partition(b";")[0].strip().lower() != b"application/json":
        raise _unsupported("The body must be JSON, sent with `Content-Type: application/json`.")
    if (header_of(scope, b"content-encoding") or b"").lower() not in (b"", b"identity"):
        raise _unsupported("The body must not be compressed: this server takes no `Content-Encoding`.")


def _unsupported(message: str) -> RequestError:
    # 400 as other servers of this protocol answer, though HTTP has 415 for it: clients were written for that.
    return RequestError(msgspec.structs.replace(refusal_for_status(415, message), status=400))


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(refusal_for_status(413, f"The body of the request is larger than {max_bytes} bytes."))
