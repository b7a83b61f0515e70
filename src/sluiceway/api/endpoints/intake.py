"""Reads the bodies of requests without holding up others: `Intake`.

The loop itself reads a body that is quick to read. Any other body goes to a worker process as it came, in parts; what
comes back is checked, and its prompts are only passed on. So no body of any shape holds up the loop for longer than a
few milliseconds. The first body that is not quick waits until a process has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope
from structlog.typing import FilteringBoundLogger

from sluiceway.api.http.request import BODIES_HELD, BodyLimits, BodyRoom, read_json_body
from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.common.body import QUICK_BYTES, is_quick
from sluiceway.protocols.common.endpoint import Endpoint
from sluiceway.protocols.common.generation import GenerationRequest
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
