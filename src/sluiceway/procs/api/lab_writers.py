"""Other ways to answer than ours, for the lab alone: they are there to show what it costs when a client leaves.

Nobody gets them but who starts a whole server for it (`--lab-response`), and it says so in its log.

own          ours: see `writer`
starlette    as an application of that framework answers: `StreamingResponse` over a generator, which listens for the
             client while it writes; an answer that is no stream is waited for and then sent, and nobody listens before
write-only   writes to the end, and never listens: `send` of the server says nothing of a client that has left
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sluiceway.config import LabResponse
from sluiceway.procs.api.answer import Answer
from sluiceway.procs.api.delivery import Delivery
from sluiceway.procs.api.writer import Writer
from sluiceway.stream.lifecycle import ReaderId


class WriteOnlyWriter(Writer):
    """See the module's docstring."""

    def __init__(self, delivery: Delivery, scope: Scope, send: Send) -> None:
        super().__init__(delivery, scope, send)
        self._chunks = None  # through them a client that has left looks like one that does not read

    async def _watch(self, receive: Receive) -> None:
        """Nobody is listened to."""


class StarletteWriter(WriteOnlyWriter):
    """See the module's docstring."""

    def __init__(self, delivery: Delivery, scope: Scope, send: Send) -> None:
        super().__init__(delivery, scope, send)
        self._scope = scope
        self._receive: Receive

    async def run(self, answer: Answer, reader_id: ReaderId, receive: Receive) -> None:
        self._receive = receive
        await super().run(answer, reader_id, receive)

    async def _write(self) -> None:
        head = await self._head()
        if head is None:
            return
        response: Response
        if self._answer.order.generation.stream and not self._answer.is_refused:
            response = StreamingResponse(self._pieces())
        else:
            response = Response(b"".join([piece async for piece in self._pieces()]), head.status)
        response.raw_headers = list(head.headers)
        await response(self._scope, self._receive, self._send)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while batch := await self._next():
            self._delivery.watch(self._answer)
            yield batch.data
            self._delivery.written(self._answer, self._reader_id)
            if batch.is_last:
                return


WRITERS: Mapping[LabResponse, type[Writer]] = MappingProxyType(
    {"own": Writer, "starlette": StarletteWriter, "write-only": WriteOnlyWriter}
)
