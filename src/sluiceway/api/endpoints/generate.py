"""Requests for tokens, each from its body to the last byte of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.api.endpoints.intake import Intake
from sluiceway.api.http.body import header_of
from sluiceway.api.http.caller import caller_of
from sluiceway.api.http.edge import request_id_of
from sluiceway.api.http.head import send_refusal
from sluiceway.api.responses.answer import Answer, Order
from sluiceway.api.responses.hub import Hub
from sluiceway.api.responses.registry import GONE
from sluiceway.api.responses.terms import Offer
from sluiceway.api.responses.writer import Writer
from sluiceway.errors import Refusal, RequestError
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.reading import Endpoint, Request
from sluiceway.protocols.common.wishes import STREAM_ID_HEADER, checked_stream_id
from sluiceway.protocols.openai.errors import error_body
from sluiceway.response.idempotency import HEADER as KEY_HEADER
from sluiceway.response.idempotency import begin_digest, checked_key
from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.override import HEADER as SLOW_CLIENT_HEADER
from sluiceway.response.replay import Place


@dataclass(frozen=True, slots=True)
class Door:
    """What every exchange needs."""

    hub: Hub
    metrics: Metrics
    log: FilteringBoundLogger
    intake: Intake
    offer: Offer
    now_s: Callable[[], float]
    """The wall clock, seconds since 1970."""
    new_id: Callable[[], str]

    async def refuse(self, refusal: Refusal, scope: Scope, send: Send) -> None:
        """Answer a request that is not served."""
        self.metrics.request_rejected(refusal.code)
        self.log.info("rejected", request_id=request_id_of(scope), reason=refusal.code, status=refusal.status)
        await send_refusal(send, refusal)


class Exchange:
    """An ASGI application for one endpoint. A call takes the request and answers it, so there is one owner."""

    def __init__(
        self,
        door: Door,
        endpoint: Endpoint,
        id_prefix: str,
        error_body: Callable[[Refusal], bytes] = error_body,
    ) -> None:
        """An answer and its stream have one id. It begins with `id_prefix` unless the client chose it."""
        self._door = door
        self._endpoint = endpoint
        self._id_prefix = id_prefix
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(self._door.hub.delivery, scope, send)
        try:
            key = _text_of(scope, KEY_HEADER)
            digest = None if key is None else begin_digest(scope["path"])
            on_part = None if digest is None else digest.update
            request = await self._door.intake.read(self._endpoint, scope, receive, on_part)
            claim = None if key is None or digest is None else (checked_key(key), digest.digest())
            answer, reader_id = self._begin(scope, request, claim, writer)
            del request
        except RequestError as error:
            await self._door.refuse(error.refusal, scope, send)
        except ClientDisconnect:
            pass
        else:
            await writer.run(answer, reader_id, receive)

    def _begin(
        self, scope: Scope, request: Request, claim: tuple[str, bytes] | None, writer: Writer
    ) -> tuple[Answer, ReaderId]:
        """Open an answer, or join the one that the request belongs to; `claim` is its key and what it is about."""
        generation = request.generation
        stream_id = generation.wishes.stream_id or _chosen_id(scope) or f"{self._id_prefix}-{self._door.new_id()}"
        terms = self._door.offer.terms_for(generation, _text_of(scope, SLOW_CLIENT_HEADER), has_key=claim is not None)
        order = Order(
            generation=generation,
            framer=request.framer(response_id=stream_id, model=generation.model, created=int(self._door.now_s())),
            error_body=self._error_body,
            terms=terms,
            request_id=request_id_of(scope),
            stream_id=stream_id,
            caller=caller_of(scope),
        )
        if claim is None:
            return self._door.hub.open(order, writer)
        return self._begin_with_key(order, *claim, writer)

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
    value = header_of(scope, name.lower().encode())
    return None if value is None else value.decode("latin-1")
