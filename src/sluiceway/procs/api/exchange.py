"""Requests for tokens, each from its body to the last byte of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.errors import Refusal, RequestError
from sluiceway.obs.metrics import Metrics
from sluiceway.procs.api.answer import Answer, Order
from sluiceway.procs.api.body import BodyLimits, read_json_body, sole_header_of
from sluiceway.procs.api.caller import caller_of
from sluiceway.procs.api.delivery import Delivery
from sluiceway.procs.api.edge import request_id_of
from sluiceway.procs.api.head import send_refusal
from sluiceway.procs.api.hub import Hub
from sluiceway.procs.api.streams import GONE
from sluiceway.procs.api.terms import Offer
from sluiceway.procs.api.writer import Writer
from sluiceway.protocols.generation import Framer, Generation
from sluiceway.protocols.openai.errors import error_body
from sluiceway.protocols.wishes import STREAM_ID_HEADER, checked_stream_id
from sluiceway.stream.idempotency import HEADER as KEY_HEADER
from sluiceway.stream.idempotency import checked_key, digest_of
from sluiceway.stream.lifecycle import ReaderId
from sluiceway.stream.override import HEADER as SLOW_CLIENT_HEADER
from sluiceway.stream.replay import Place


class Lowered(NamedTuple):
    """What a body asks for. Its answer's id, which is its stream's, begins with `id_prefix` where nobody chose it."""

    generation: Generation
    framer_for: Callable[[str], Framer]
    id_prefix: str


Lower = Callable[[bytes], Lowered]
"""From a body to what it asks for. Raises `RequestError`."""


@dataclass(frozen=True, slots=True)
class Door:
    """What every exchange needs."""

    hub: Hub
    metrics: Metrics
    log: FilteringBoundLogger
    limits: BodyLimits
    offer: Offer
    new_id: Callable[[], str]
    new_writer: Callable[[Delivery, Scope, Send], Writer] = Writer
    """Makes the owner of each answer."""

    async def refuse(self, refusal: Refusal, scope: Scope, send: Send) -> None:
        """Answer a request that is not served."""
        self.metrics.request_rejected(refusal.code)
        self.log.info("rejected", request_id=request_id_of(scope), reason=refusal.code, status=refusal.status)
        await send_refusal(send, refusal)


class Exchange:
    """An ASGI application for one endpoint. A call takes the request and answers it, so there is one owner."""

    def __init__(self, door: Door, lower: Lower, error_body: Callable[[Refusal], bytes] = error_body) -> None:
        self._door = door
        self._lower = lower
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = self._door.new_writer(self._door.hub.delivery, scope, send)
        try:
            body = await read_json_body(scope, receive, self._door.limits)
            answer, reader_id = self._begin(scope, body, writer)
            del body
        except RequestError as error:
            await self._door.refuse(error.refusal, scope, send)
        except ClientDisconnect:
            pass
        else:
            await writer.run(answer, reader_id, receive)

    def _begin(self, scope: Scope, body: bytes, writer: Writer) -> tuple[Answer, ReaderId]:
        """Open an answer, or join the one that the request belongs to."""
        generation, framer_for, id_prefix = self._lower(body)
        stream_id = generation.wishes.stream_id or _chosen_id(scope) or f"{id_prefix}-{self._door.new_id()}"
        key = _text_of(scope, KEY_HEADER)
        order = Order(
            generation=generation,
            framer=framer_for(stream_id),
            error_body=self._error_body,
            terms=self._door.offer.terms_for(generation, _text_of(scope, SLOW_CLIENT_HEADER), has_key=key is not None),
            request_id=request_id_of(scope),
            stream_id=stream_id,
            caller=caller_of(scope),
        )
        if key is None:
            return self._door.hub.open(order, writer)
        return self._begin_with_key(order, checked_key(key), digest_of(scope["path"], body), writer)

    def _begin_with_key(self, order: Order, key: str, digest: bytes, writer: Writer) -> tuple[Answer, ReaderId]:
        hub = self._door.hub
        answer = hub.streams.claim(order.caller, key, digest, order.stream_id, hub.now_s)
        if answer is not None:
            place = answer.stream.place_after(0)
            if not isinstance(place, Place):
                raise RequestError(GONE)
            return answer, hub.delivery.attach(answer, place, writer)
        try:
            return hub.open(order, writer)
        except RequestError:
            hub.streams.forget_key(order.stream_id, order.caller)
            raise


def _chosen_id(scope: Scope) -> str | None:
    """The id that the client has put into a header. Raises `RequestError` for one that is none."""
    value = _text_of(scope, STREAM_ID_HEADER)
    return None if value is None else checked_stream_id(value)


def _text_of(scope: Scope, name: str) -> str | None:
    value = sole_header_of(scope, name)
    return None if value is None else value.decode("latin-1")
