"""The ASGI application: its routes, and their answers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from sluiceway.api.context import AppContext
from sluiceway.api.endpoints.cancels import Cancels
from sluiceway.api.endpoints.generate import GenerateEndpoint
from sluiceway.api.endpoints.stats import account, ask_for_audit
from sluiceway.api.endpoints.streams import CancelEndpoint, ListEndpoint, StreamEndpoint
from sluiceway.api.http.head import ErrorBody, RawHeaders, refusal_head
from sluiceway.api.http.middleware import Edge, Gate, request_id_of
from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.config import ServeConfig
from sluiceway.errors import Refusal
from sluiceway.obs.metrics import CONTENT_TYPE
from sluiceway.protocols.common.body import shorten
from sluiceway.protocols.common.errors import error_body, model_not_found, refusal_for_status
from sluiceway.protocols.openai.models import ModelCard, card_body, list_body
from sluiceway.refusals import LOADING

_READ = ["GET", "HEAD"]
_GUESSED_CHARACTERS = 128
"""How much of an unknown path is compared with the known ones. They are all shorter."""
_ANSWERING = "what answers is `/v1/chat/completions` and `/v1/completions`; `/v1/models` lists the model"
_OF_THE_MODEL = "`/v1/models` tells of the model, `/stats` of the server"
_NEAREST = {
    "/detokenize": "`/v1/completions` takes token ids as a prompt",
    "/embed": _ANSWERING,
    "/embedding": _ANSWERING,
    "/embeddings": _ANSWERING,
    "/info": _OF_THE_MODEL,
    "/messages": "the nearest that is served is `/v1/chat/completions`",
    "/props": _OF_THE_MODEL,
    "/ps": _OF_THE_MODEL,
    "/responses": "the nearest that is served is `/v1/chat/completions`",
    "/show": _OF_THE_MODEL,
    "/slots": "`/v1/streams` lists what runs, `/stats` tells of the server",
    "/tags": "`/v1/models` lists the model",
    "/tokenize": "the `usage` of an answer counts the tokens of its prompt",
    "/version": "`sluiceway --version` prints the version, `/v1/models` lists the model",
}
"""Paths of other servers, below `/v1`, `/api` or nothing, with the nearest path of this server."""
_PREFLIGHT = (
    "CORS preflights are not served: a page of another origin cannot use this server."
    " Serve the page and the API under one origin, for example by a proxy."
)


def build_app(config: ServeConfig, context: AppContext) -> FastAPI:
    """Build the application. It serves no pages of documentation: every route is listed here."""
    paths: list[str] = []
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _router_refused(paths, context)},
    )
    gate = Gate(listens_on=config.host, allowed=config.allowed_host)
    app.add_middleware(
        Edge,
        new_id=context.new_id,
        log=context.log,
        gate=gate,
        refuse=context.refuse,
        error_body_of=context.error_body_of,
    )
    _add_generation(app, context)
    _add_streams(app, context, max_receipts=config.streams.history_records)
    _add_models(app, config.model.name, context)
    _add_health(app, context.dispatcher)
    _add_metrics_and_stats(app, context)
    paths += [path for route in app.routes if (path := getattr(route, "path", "{")) and "{" not in path]
    return app


def _add_generation(app: FastAPI, context: AppContext) -> None:
    # Plain routes: the endpoint reads the request by itself, and a route of FastAPI would double its cost.
    for endpoint in context.endpoints:
        app.router.routes.append(Route(endpoint.path, GenerateEndpoint(context, endpoint), methods=["POST"]))


def _add_streams(app: FastAPI, context: AppContext, *, max_receipts: int) -> None:
    cancel = CancelEndpoint(context, Cancels(context.dispatcher, max_receipts=max_receipts))
    app.router.routes.append(Route("/v1/streams", ListEndpoint(context), methods=["GET"]))
    app.router.routes.append(Route("/v1/streams/{stream_id}", StreamEndpoint(context), methods=["GET"]))
    app.router.routes.append(Route("/v1/streams/{stream_id}/cancel", cancel, methods=["POST"]))


def _add_models(app: FastAPI, served_name: str, context: AppContext) -> None:
    created = int(context.now_s())

    @app.api_route("/v1/models", methods=_READ)
    async def models() -> Response:
        facts = context.dispatcher.facts
        if facts is None:
            return _refusal(LOADING)
        return _json(list_body([ModelCard(served_name, created, facts.max_sequence_tokens)]))

    @app.api_route("/v1/models/{model:path}", methods=_READ)
    async def model_card(model: str) -> Response:
        facts = context.dispatcher.facts
        if not model:
            raise HTTPException(404)  # `/v1/models/`
        if model != served_name:
            return _refusal(model_not_found(model, served_name))
        if facts is None:
            return _refusal(LOADING)
        return _json(card_body(ModelCard(served_name, created, facts.max_sequence_tokens)))


def _add_health(app: FastAPI, dispatcher: Dispatcher) -> None:
    @app.api_route("/health/live", methods=_READ)
    async def live() -> Response:
        return _json(b'{"status":"live"}')

    @app.api_route("/health", methods=_READ)
    @app.api_route("/health/ready", methods=_READ)
    async def ready() -> Response:
        refusal = dispatcher.refusal
        return _json(b'{"status":"ready"}') if refusal is None else _refusal(refusal)


def _add_metrics_and_stats(app: FastAPI, context: AppContext) -> None:
    @app.api_route("/metrics", methods=_READ)
    async def metrics() -> Response:
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)

    @app.api_route("/stats", methods=_READ)
    async def stats() -> Response:
        report = await ask_for_audit(context.dispatcher)
        return _json(msgspec.json.encode(account(context.dispatcher, context.metrics, report, context.processes)))


def _router_refused(
    paths: Sequence[str], context: AppContext
) -> Callable[[Request, Exception], Coroutine[Any, Any, Response]]:
    """Answer an unknown path or method in the usual envelope, with the headers of the router (`Allow`)."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        more = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
        path = request.scope["path"]
        message = _not_found(path, paths) if error.status_code == 404 else None
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            message = _PREFLIGHT
        refusal = refusal_for_status(error.status_code, message)
        context.metrics.requests_rejected[refusal.code].value += 1
        context.log.info(
            "rejected", request_id=request_id_of(request.scope), reason=refusal.code, status=refusal.status,
            method=request.scope["method"], path=shorten(path),
        )  # fmt: skip
        return _refusal(refusal, more, context.error_body_of(request.scope))

    return refuse


def _not_found(path: str, known: Sequence[str]) -> str:
    asked = path[:_GUESSED_CHARACTERS].rstrip("/").lower()
    nearest = _NEAREST.get(asked.removeprefix("/v1").removeprefix("/api"))
    if nearest is not None:
        return f"{shorten(path)} is not served by this server; {nearest}."
    if meant := _meant(asked, known):
        is_below_another = any(asked.startswith(f"{way}/") for way in known)
        base = " The base_url of a client must end in `/v1`." if is_below_another else ""
        return f"There is nothing at this path; did you mean `{meant}`?{base}"
    if asked.startswith("/v1/"):
        return f"{shorten(path)} is not served by this server; {_ANSWERING}."
    return "There is nothing at this path; the API is below `/v1`, as in `/v1/chat/completions`."


def _meant(path: str, known: Sequence[str]) -> str | None:
    """The known path that was probably meant: the common prefix is missing or doubled, or a letter is wrong."""
    last = path.rpartition("/")[2]
    if last in ("", "v1"):
        return None
    below = [path.removeprefix(way) for way in known if path.startswith(f"{way}/")]
    for found in (
        [way for way in known if path.endswith(way)],
        [way for way in known if way.endswith(path)],
        [way for way in known if any(way.endswith(rest) for rest in below)],
        difflib.get_close_matches(path, known, 1, 0.8),
        [way for way in known if last in way.split("/")],
    ):
        if found:
            return min(found, key=len)
    return None


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _refusal(refusal: Refusal, more: RawHeaders = (), error_body: ErrorBody = error_body) -> Response:
    body = error_body(refusal)
    response = Response(body, refusal.status)
    response.raw_headers = list(refusal_head(len(body), refusal, more).headers)
    return response
