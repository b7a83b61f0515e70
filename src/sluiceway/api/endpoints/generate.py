"""The endpoints that generate text: each call is handled from its body to the last byte of its response."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from sluiceway.api.context import AppContext
from sluiceway.api.http.middleware import request_id_of
from sluiceway.api.http.request import caller_of, header_of
from sluiceway.api.responses.registry import GONE
from sluiceway.api.responses.response import Response, ResponseSpec
from sluiceway.api.responses.writer import AsgiWriter
from sluiceway.errors import RequestError
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.protocols.common.stream_options import STREAM_ID_HEADER, StreamOptions, checked_stream_id
from sluiceway.response.backlog import Cursor
from sluiceway.response.idempotency import HEADER as KEY_HEADER
from sluiceway.response.idempotency import begin_digest, checked_key
from sluiceway.response.lifecycle import ReaderId
from sluiceway.response.override import HEADER as SLOW_CLIENT_HEADER

_NO_OPTIONS = StreamOptions()


class GenerateEndpoint:
    """The ASGI application of one path. One call reads the request and writes the response, so it has one owner."""

    def __init__(self, context: AppContext, endpoint: Endpoint) -> None:
        self._context = context
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = AsgiWriter(scope, send)
        try:
            key = _text_of(scope, KEY_HEADER)
            digest = None if key is None else begin_digest(scope["path"])
            on_part = None if digest is None else digest.update
            request = await self._context.intake.read(self._endpoint, scope, receive, on_part)
            claim = None if key is None or digest is None else (checked_key(key), digest.digest())
            response, reader_id = self._begin(scope, request, claim, writer)
            del request
        except RequestError as error:
            await self._context.refuse(error.refusal, scope, send)
        except ClientDisconnect:
            pass
        else:
            await writer.run(response, reader_id, receive)

    def _begin(
        self, scope: Scope, request: GenerationRequest, claim: tuple[str, bytes] | None, writer: AsgiWriter
    ) -> tuple[Response, ReaderId]:
        """Open a response, or join that of the idempotency key. `claim`: the key and its digest."""
        endpoint, context = self._endpoint, self._context
        stream_id = request.stream_options.stream_id or _chosen_id(scope) or f"{endpoint.id_prefix}-{context.new_id()}"
        slow_client, defaults = _text_of(scope, SLOW_CLIENT_HEADER), context.defaults
        is_plain = request.stream and request.stream_options == _NO_OPTIONS and slow_client is None and claim is None
        terms = defaults.plain if is_plain else defaults.terms_for(request, slow_client, has_key=claim is not None)
        spec = ResponseSpec(
            generation=request,
            framer=endpoint.framer(request, stream_id, int(context.now_s())),
            error_body=endpoint.error_body,
            terms=terms,
            request_id=request_id_of(scope),
            stream_id=stream_id,
            caller=caller_of(scope),
            has_key=claim is not None,
        )
        if claim is None:
            return context.dispatcher.open(spec, writer)
        return self._begin_with_key(spec, *claim, writer)

    def _begin_with_key(
        self, spec: ResponseSpec, key: str, digest: bytes, writer: AsgiWriter
    ) -> tuple[Response, ReaderId]:
        dispatcher = self._context.dispatcher
        response = dispatcher.registry.claim(spec.caller, key, digest, spec.stream_id)
        if response is not None:
            cursor = response.stream.cursor_after(0)
            if not isinstance(cursor, Cursor):
                raise RequestError(GONE)
            return response, response.attach(cursor, writer)
        try:
            return dispatcher.open(spec, writer)
        except RequestError:
            dispatcher.registry.forget_key(spec.stream_id, spec.caller)
            raise


def _chosen_id(scope: Scope) -> str | None:
    """The id in the header of the request. Raises `RequestError` if it is not a valid id."""
    value = _text_of(scope, STREAM_ID_HEADER)
    return None if value is None else checked_stream_id(value)


def _text_of(scope: Scope, name: str) -> str | None:
    value = header_of(scope, name.lower().encode())
    return None if value is None else value.decode("latin-1")
