"""Writes one answer to one client, from its head to its last byte, and owns that: when it ends, the reader has left."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from sluiceway.api.http.chunks import ChunkWriter, chunks_of
from sluiceway.api.http.head import Head, send_head
from sluiceway.api.responses.answer import Answer
from sluiceway.api.responses.delivery import Delivery
from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.reader import Batch

TURN_BYTES = 64 * 1024
"""At most so much is written to one reader in one turn of the loop: others have theirs while it catches up."""


class Writer:
    """A reader of one answer (`answer.Reader`), and the task that writes to it.

    Where the server lets the owner of a response write by itself (`chunks`), events leave with the `wake` of the hub
    while this task sleeps, from the head of the answer to its last write, which is the task's again.
    """

    def __init__(self, delivery: Delivery, scope: Scope, send: Send) -> None:
        self._delivery = delivery
        self._send = send
        self._chunks: ChunkWriter | None = chunks_of(scope)
        self._woken = asyncio.Event()
        self._is_passing = self._is_due = False
        self._last: Batch | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer: Answer
        self._reader_id: ReaderId

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._chunks is None else self._chunks.unsent_bytes

    def wake(self) -> None:
        if self._is_passing:
            self._pass_on()
        else:
            self._woken.set()

    def abort(self) -> None:
        if self._chunks is not None:
            self._chunks.abort()
        elif self._task is not None:
            self._task.cancel()

    async def run(self, answer: Answer, reader_id: ReaderId, receive: Receive) -> None:
        """Write all that the answer has for this reader, which the hub has attached.

        The reader is left in the `finally`, synchronously: wherever a cancellation lands, what runs for it alone is
        cancelled. A body generator would not do, since one that was never started, or waits in `send`, runs no
        `finally` in time.
        """
        self._answer, self._reader_id = answer, reader_id
        watch = asyncio.create_task(self._watch(receive))
        self._task = asyncio.current_task()
        try:
            await self._write()
        finally:
            self._delivery.leave(answer, reader_id)
            watch.cancel()

    @property
    def _is_read(self) -> bool:
        return self._answer.stream.has_reader(self._reader_id)

    async def _write(self) -> None:
        head = await self._head()
        if head is not None:
            await send_head(self._send, head)
        if self._chunks is not None:
            await self._sleep_while_passing(self._chunks)
        while batch := self._last or await self._next():
            self._delivery.watch(self._answer)  # nobody knows how long `send` takes
            body = bytes(batch.data)
            await self._send({"type": "http.response.body", "body": body, "more_body": not batch.is_last})
            self._delivery.written(self._answer, self._reader_id)
            if batch.is_last:
                return

    async def _head(self) -> Head | None:
        """As soon as there is one; None if its reader has left before."""
        while self._answer.head is None and self._is_read:
            await self._wait()
        return self._answer.head

    async def _sleep_while_passing(self, chunks: ChunkWriter) -> None:
        chunks.is_watched = True
        chunks.on_writable = self._find_room
        self._is_passing = True
        self._pass_on()
        while self._last is None and self._is_read:
            await self._wait()
        self._is_passing = False

    async def _next(self) -> Batch | None:
        """What is to be written next; None when nothing more is."""
        while True:
            batch = self._answer.stream.take(self._reader_id)
            if batch is not None or not self._is_read:
                return batch
            await self._wait()

    async def _wait(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def _pass_on(self) -> None:
        """Write what there is while there is room. What a reader is too slow for stays with the stream."""
        answer, reader_id, chunks = self._answer, self._reader_id, self._chunks
        assert chunks is not None
        n_written = 0
        while chunks.is_writable:
            if n_written >= TURN_BYTES:
                self._pass_on_later()
                return
            batch = answer.stream.take(reader_id)
            if batch is None:
                if not self._is_read:
                    self._woken.set()
                return
            if batch.is_last:
                self._last = batch
                self._woken.set()
                return
            chunks.write(batch.data)
            n_written += len(batch.data)
            self._delivery.written(answer, reader_id, chunks.held_bytes)
            if not batch.has_more:
                return
        if not self._is_read:
            self._woken.set()
            return
        self._delivery.watch(answer)

    def _pass_on_later(self) -> None:
        """In the next turn of the loop: others have theirs first."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._pass_on_now)

    def _pass_on_now(self) -> None:
        self._is_due = False
        if self._is_passing:
            self._pass_on()

    def _find_room(self) -> None:
        """The transport has let go of what it held: a request that was paused for this reader may go on at once."""
        self._delivery.look_at(self._answer)
        self.wake()

    async def _watch(self, receive: Receive) -> None:
        """Leave as soon as the client has left, whatever the task waits for."""
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._delivery.leave(self._answer, self._reader_id)
            self.wake()
