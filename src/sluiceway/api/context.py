"""The objects that all endpoints of the API process need, in one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.api.http.head import ErrorBody, send_refusal
from sluiceway.api.http.middleware import request_id_of
from sluiceway.api.http.request import Intake
from sluiceway.api.responses.defaults import StreamDefaults
from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.errors import Refusal
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.errors import error_body
from sluiceway.protocols.common.generation import Endpoint
from sluiceway.protocols.endpoints import ENDPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """The objects that the endpoints of one process share. `now_s` is the wall clock, in seconds since 1970."""

    dispatcher: Dispatcher
    metrics: Metrics
    log: FilteringBoundLogger
    intake: Intake
    defaults: StreamDefaults
    now_s: Callable[[], float]
    new_id: Callable[[], str]
    processes: Mapping[str, int]
    """Process ids by role, as far as they are known. They change when a process starts again."""

    endpoints: Sequence[Endpoint] = ENDPOINTS
    """The paths that generate text."""

    def error_body_of(self, scope: Scope) -> ErrorBody:
        """The function that makes the bodies of errors on this path. Paths without an endpoint have OpenAI's form."""
        path = scope["path"]
        return next((endpoint.error_body for endpoint in self.endpoints if endpoint.path == path), error_body)

    async def refuse(self, refusal: Refusal, scope: Scope, send: Send) -> None:
        """Answer a request with a refusal, and count and log it."""
        self.metrics.requests_rejected[refusal.code].value += 1
        self.log.info("rejected", request_id=request_id_of(scope), reason=refusal.code, status=refusal.status)
        await send_refusal(send, refusal, self.error_body_of(scope))
