"""Reads requests: headers, the caller, and JSON bodies within a size, within a time, and within what all may hold."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sluiceway.errors import RequestError
from sluiceway.protocols.common.body import QUICK_BYTES
from sluiceway.protocols.common.errors import refusal_for_status
from sluiceway.refusals import OVERLOADED

BODIES_HELD = 8
"""How many bodies of the largest size all requests together may hold while they are read and validated."""

_SMALL_BYTES = 4 * 1024
"""Smaller parts are joined, so that a body has few parts."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds of one body. `timeout_s` is for the whole of it: a slow body must not hold a connection for ever."""

    max_bytes: int
    timeout_s: float = 60.0


class BodyRoom:
    """Counts the memory of all bodies that are read or validated. Short bodies do not count: connections bound them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.n_bytes = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the size of a body so far. It raises `RequestError` (503) without room."""
        held = 0

        def grow(n_bytes: int) -> None:
            nonlocal held
            more = max(0, n_bytes - QUICK_BYTES) - held
            if more and self.n_bytes + more > self._max_bytes:
                raise RequestError(OVERLOADED)
            self.n_bytes += more
            held += more

        try:
            yield grow
        finally:
            self.n_bytes -= held


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def pass_over_body(receive: Receive, max_bytes: int = 64 * 1024, timeout_s: float = 1.0) -> None:
    """Read and ignore a body, so that the connection can be used again. A larger or slower body is left unread."""
    with contextlib.suppress(TimeoutError, ClientDisconnect, RequestError):
        async with asyncio.timeout(timeout_s):
            await _read(receive, max_bytes, lambda part, n_bytes: None)


async def read_json_body(
    scope: Scope,
    receive: Receive,
    limits: BodyLimits,
    on_part: Callable[[bytes, int], None] = lambda part, n_bytes: None,
) -> list[bytes]:
    """Read the parts of the body. `on_part` is called with each part and the size so far.

    Raises `RequestError` (400, 408, 413), or `ClientDisconnect` if the client leaves before its body is whole.
    """
    _check_labels(scope)
    length = header_of(scope, b"content-length")
    if length is not None and int(length) > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _read(receive, limits.max_bytes, on_part)
    except TimeoutError:
        raise RequestError(refusal_for_status(408)) from None


async def _read(receive: Receive, max_bytes: int, on_part: Callable[[bytes, int], None]) -> list[bytes]:
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > max_bytes:
            raise _too_large(max_bytes)
        if part:
            on_part(part, n_bytes)
            if parts and len(parts[-1]) < _SMALL_BYTES:
                parts[-1] += part
            else:
                parts.append(part)
        if not message.get("more_body", False):
            return parts


def _check_labels(scope: Scope) -> None:
    label = header_of(scope, b"content-type") or b""
    if label.partition(b";")[0].strip().lower() != b"application/json":
        raise _unsupported("The body must be JSON, sent with `Content-Type: application/json`.")
    if (header_of(scope, b"content-encoding") or b"").lower() not in (b"", b"identity"):
        raise _unsupported("The body must not be compressed: this server takes no `Content-Encoding`.")


def _unsupported(message: str) -> RequestError:
    # 400 and not 415, since other servers of this protocol answer so and clients expect it.
    return RequestError(msgspec.structs.replace(refusal_for_status(415, message), status=400))


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(refusal_for_status(413, f"The body of the request is larger than {max_bytes} bytes."))


_CREDENTIALS = (b"authorization", b"x-api-key")


def caller_of(scope: Scope) -> str:
    """A digest that names the caller by its credentials. All requests without credentials have one caller, "".

    The name of the header is part of the digest: the same value in the other header is another caller.
    """
    digest = hashlib.sha256()
    is_anonymous = True
    for name in _CREDENTIALS:
        value = _normalized(name, header_of(scope, name))
        if value is not None:
            is_anonymous = False
            digest.update(name + b"\0" + hashlib.sha256(value).digest())
    return "" if is_anonymous else digest.hexdigest()


def _normalized(name: bytes, value: bytes | None) -> bytes | None:
    """Make equal credentials equal: the case of the scheme and further blanks after it mean nothing.

    https://www.rfc-editor.org/rfc/rfc9110#section-11.4
    """
    if value is None or name != b"authorization":
        return value
    scheme, blank, rest = value.partition(b" ")
    return scheme.lower() + blank + rest.lstrip(b" ") if blank else value
