"""Requests for tokens, each from its body to the last byte of its answer, which it owns; nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.errors import Refusal, RequestError
from sluiceway.obs.metrics import Metrics
from sluiceway.procs.api.answer import Answer
from sluiceway.procs.api.body import BodyLimits, read_json_body
from sluiceway.procs.api.chunks import ChunkWriter, chunks_of
from sluiceway.procs.api.edge import request_id_of
from sluiceway.procs.api.head import send_head, send_refusal
from sluiceway.procs.api.hub import Hub
from sluiceway.protocols.generation import Framer, Generation
from sluiceway.protocols.openai.errors import error_body
from sluiceway.stream.session import State

Lower = Callable[[bytes], tuple[Generation, Framer]]
"""From a body to what is generated and how it is framed. Raises `RequestError`."""


@dataclass(frozen=True, slots=True)
class Door:
    """What every exchange needs."""

    hub: Hub
    metrics: Metrics
    log: FilteringBoundLogger
    limits: BodyLimits


class Exchange:
    """An ASGI application for one endpoint. A call takes the request and answers it, so there is one owner and one
    `finally`.

    The answer is left in that `finally`, synchronously: wherever a cancellation lands, what runs for it is cancelled.
    A body generator would not do, since one that was never started, or waits in `send`, runs no `finally` in time.
    """

    def __init__(self, door: Door, lower: Lower) -> None:
        self._door = door
        self._lower = lower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_json_body(scope, receive, self._door.limits)
            generation, framer = self._lower(body)
            del body
            answer = self._door.hub.open(generation, framer, error_body, request_id_of(scope))
        except RequestError as error:
            await self._refuse(error.refusal, scope, send)
            return
        except ClientDisconnect:
            return
        watch = asyncio.create_task(_watch(receive, self._door.hub, answer))
        try:
            await self._write(answer, send, chunks_of(scope))
        finally:
            self._door.hub.leave(answer)
            watch.cancel()

    async def _refuse(self, refusal: Refusal, scope: Scope, send: Send) -> None:
        self._door.metrics.request_rejected(refusal.code)
        self._door.log.info("rejected", request_id=request_id_of(scope), reason=refusal.code, status=refusal.status)
        await send_refusal(send, refusal)

    async def _write(self, answer: Answer, send: Send, chunks: ChunkWriter | None) -> None:
        woken = asyncio.Event()
        answer.wake = woken.set
        session = answer.session
        while answer.head is None and session.state is not State.CLOSED:
            await woken.wait()
            woken.clear()
        if answer.head is not None:
            await send_head(send, answer.head)
        if chunks is not None:
            await self._pass_on(answer, chunks, woken)
        while session.state is not State.CLOSED:
            if session.state is State.OPEN and not session.outbox.n_events:
                await woken.wait()
                woken.clear()
                continue
            # Once it is not open any more, its last frame is in the outbox, and leaves with this write.
            is_last = session.state is not State.OPEN
            batch = session.take()
            await send({"type": "http.response.body", "body": batch.data, "more_body": not is_last})
            self._door.hub.written(answer, batch.n_tokens)

    async def _pass_on(self, answer: Answer, chunks: ChunkWriter, woken: asyncio.Event) -> None:
        """While the session is open the hub writes, with its wake; this task sleeps. What a reader is too slow for
        stays in the outbox until it has caught up."""
        session, hub = answer.session, self._door.hub

        def write() -> None:
            if session.state is not State.OPEN:
                woken.set()
            elif session.outbox.n_bytes and chunks.is_writable:
                batch = session.take()
                chunks.write(batch.data)
                hub.written(answer, batch.n_tokens)

        answer.wake = chunks.on_writable = write
        write()
        while session.state is State.OPEN:
            await woken.wait()
            woken.clear()


async def _watch(receive: Receive, hub: Hub, answer: Answer) -> None:
    """Leave the answer as soon as its client has left, whatever the writer is waiting for."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        hub.leave(answer)
        answer.wake()
