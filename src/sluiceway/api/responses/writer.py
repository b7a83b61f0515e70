"""Writes one response to one client, from its head to its last byte. When the writer ends, its reader has left."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from sluiceway.api.http.chunks import ChunkWriter, chunks_of
from sluiceway.api.http.head import send_head
from sluiceway.api.responses.response import Response
from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.readers import PendingWrite

TURN_BYTES = 64 * 1024
"""How much one reader gets in one turn of the loop. Other readers have their turn while it catches up."""


class AsgiWriter:
    """The `ResponseWriter` of one ASGI call, and the task that writes to it.

    Where the server lets an application write by itself (`chunks`), events are written in `wake` while the task sleeps.
    The head and the last write always belong to the task.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._chunks: ChunkWriter | None = chunks_of(scope)
        self._woken = asyncio.Event()
        self._is_direct = self._is_scheduled = False
        """Whether `wake` writes; whether it is called again in the next turn of the loop."""
        self._last: PendingWrite | None = None
        self._task: asyncio.Task[None] | None = None
        self._response: Response
        self._reader_id: ReaderId

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport and the kernel hold; 0 if they cannot be asked."""
        return 0 if self._chunks is None else self._chunks.unsent_bytes

    def wake(self) -> None:
        """Write what waits while there is room, or wake the task. What finds no room stays in the backlog."""
        chunks = self._chunks
        if not self._is_direct or chunks is None:
            self._woken.set()
            return
        response, reader_id = self._response, self._reader_id
        n_written = 0
        while chunks.is_writable:
            if n_written >= TURN_BYTES:
                self._wake_later()
                return
            pending = response.stream.take(reader_id)
            if pending is None:
                if not self._is_read:
                    self._woken.set()
                return
            if pending.is_last:
                self._last = pending
                self._woken.set()
                return
            n_written += len(pending.data)
            response.written(reader_id, chunks.write(pending.data))
            if not pending.has_more:
                return
        if self._is_read:
            response.watch()
        else:
            self._woken.set()

    def write_now(self, frame: bytes) -> int | None:
        """Write an event that has not been in the backlog, if there is room, and return what the transport holds."""
        chunks = self._chunks
        return chunks.write(frame) if self._is_direct and chunks is not None and chunks.is_writable else None

    def abort(self) -> None:
        """Break the connection off; without access to it, cancel the task."""
        if self._chunks is not None:
            self._chunks.abort()
        elif self._task is not None:
            self._task.cancel()

    async def run(self, response: Response, reader_id: ReaderId, receive: Receive) -> None:
        """Write everything that the response has for this reader, which is attached with this writer.

        The reader leaves in the `finally`, synchronously. So wherever a cancellation comes, what runs for this reader
        alone is cancelled. A body generator could not do this, since a generator that was never started, or that is
        suspended in `send`, runs no `finally` in time.
        """
        self._response, self._reader_id = response, reader_id
        self._task = asyncio.current_task()
        woken, chunks = self._woken, self._chunks
        watch = asyncio.create_task(self._watch(receive)) if chunks is None else None
        try:
            if chunks is not None:
                chunks.watch(self._leave)
            while response.head is None and self._is_read:
                await woken.wait()
                woken.clear()
            if response.head is not None:
                response.watch()  # `send` may take any time
                await send_head(self._send, response.head)
            if chunks is not None:
                chunks.is_watched = True
                chunks.on_writable = self._find_room
                self._is_direct = True
                self.wake()
                while self._last is None and self._is_read:
                    await woken.wait()
                    woken.clear()
                self._is_direct = False
            while pending := self._last or await self._next():
                if not pending.is_last or chunks is None or not chunks.is_writable:
                    response.watch()
                body = bytes(pending.data)
                await self._send({"type": "http.response.body", "body": body, "more_body": not pending.is_last})
                response.written(reader_id)
                if pending.is_last:
                    return
        finally:
            response.leave(reader_id)
            if watch is not None:
                watch.cancel()

    @property
    def _is_read(self) -> bool:
        return self._response.stream.has_reader(self._reader_id)

    async def _next(self) -> PendingWrite | None:
        """Wait for the next write; None when the reader gets nothing more."""
        while True:
            pending = self._response.stream.take(self._reader_id)
            if pending is not None or not self._is_read:
                return pending
            await self._woken.wait()
            self._woken.clear()

    def _wake_later(self) -> None:
        """Go on in the next turn of the loop, after others have had theirs."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._is_scheduled = False
        if self._is_direct:
            self.wake()

    def _find_room(self) -> None:
        """Go on after the transport has sent what it held. Sequences that were paused for this reader may run again."""
        self._response.tick()
        self.wake()

    async def _watch(self, receive: Receive) -> None:
        """Leave when the client leaves, where the server does not offer `chunks`."""
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._leave()

    def _leave(self) -> None:
        """Leave when the client has left, whatever the task waits for."""
        if self._response.writers.get(self._reader_id) is self:
            self._response.leave(self._reader_id)
            self.wake()
