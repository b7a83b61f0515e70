"""Reads requests: headers, the caller, and JSON bodies within a size, within a time, and within what all may hold.

The loop itself reads a body that is quick to read. Any other body goes to a worker process as it came, in parts; what
comes back is checked, and its prompts are only passed on. So no body of any shape holds up the loop for longer than a
few milliseconds. The first body that is not quick waits until a process has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope
from structlog.typing import FilteringBoundLogger

from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.common.body import QUICK_BYTES, is_quick
from sluiceway.protocols.common.errors import refusal_for_status
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.protocols.common.reading import PromptRoom, job_head, read_result
from sluiceway.refusals import INTERNAL_ERROR, OVERLOADED
from sluiceway.runtime.worker import (
    WorkerBusy,
    WorkerDied,
    WorkerFault,
    WorkerLimits,
    WorkerMemoryError,
    WorkerPool,
    WorkerResultError,
    WorkerTimeout,
)

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


class Worker(Protocol):
    """Does jobs of `protocols.common.reading` in another process."""

    async def run(self, *parts: bytes) -> bytes:
        """Raises `WorkerError`."""


def worker_pool(served_name: str, max_body_bytes: int) -> WorkerPool:
    """The processes that read large bodies. JSON that is read takes up to thirty times its size."""
    limits = WorkerLimits(
        deadline_s=10.0,
        memory_bytes=max(1 << 30, 40 * max_body_bytes),
        result_bytes=(1 << 20) + 4 * max_body_bytes,
        n_children=2,
        max_waiting=64,
        max_waiting_bytes=BODIES_HELD * max_body_bytes,
    )
    return WorkerPool("sluiceway.protocols.endpoints:build", served_name.encode(), limits)


class Intake:
    """Reads bodies. `prompt_room` says how long a prompt may be, as far as that is known."""

    def __init__(
        self,
        served_name: str,
        limits: BodyLimits,
        worker: Worker,
        prompt_room: Callable[[], PromptRoom],
        log: FilteringBoundLogger,
    ) -> None:
        self._served_name = served_name
        self._limits = limits
        self._worker = worker
        self._prompt_room = prompt_room
        self._log = log
        self.room = BodyRoom(BODIES_HELD * limits.max_bytes)

    async def read(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, on_part: Callable[[bytes], object] | None = None
    ) -> GenerationRequest:
        """What the body of this call asks for; `on_part` is called with each part of it.

        Raises `RequestError`, or `ClientDisconnect` if the client leaves meanwhile.
        """
        with self.room.hold() as grow:

            def take(part: bytes, n_bytes: int) -> None:
                grow(n_bytes)
                if on_part is not None:
                    on_part(part)

            parts = await read_json_body(scope, receive, self._limits, take)
            if sum(map(len, parts)) <= QUICK_BYTES:
                body = b"".join(parts)
                if is_quick(body):
                    return endpoint.read(body, self._served_name)
            return await self._read_beside(endpoint, parts, receive)

    async def _read_beside(self, endpoint: Endpoint, parts: Sequence[bytes], receive: Receive) -> GenerationRequest:
        job = asyncio.ensure_future(self._worker.run(job_head(endpoint, self._prompt_room()), *parts))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientDisconnect
            return read_result(job.result())
        except (WorkerBusy, WorkerTimeout, WorkerDied):
            raise RequestError(OVERLOADED) from None
        except (WorkerMemoryError, WorkerResultError):
            raise invalid(
                "The body has too many values to be read.",
                code="too_many_values",
            ) from None
        except WorkerFault as error:
            self._log.error("a body could not be read", fault=str(error))
            raise RequestError(INTERNAL_ERROR) from None
        finally:
            job.cancel()
            gone.cancel()
            await asyncio.gather(job, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
