"""Specs of responses, as the generate endpoint makes them from a request, and the context that responses share."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.api.responses.registry import ResponseRegistry
from sluiceway.api.responses.response import ResponseContext, ResponseSpec
from sluiceway.config import StreamsConfig
from sluiceway.ipc.messages.to_tokenizer import FromApi
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.errors import error_body
from sluiceway.protocols.common.generation import Framer, GenerationRequest
from sluiceway.protocols.openai.framer import CompletionFramer
from sluiceway.response.terms import StreamTerms
from sluiceway.types import FinishReason, Rid
from support.asgi_driver import record_log

PLAIN = StreamTerms()


def spec_of(
    request: GenerationRequest,
    framer: Framer | None = None,
    *,
    terms: StreamTerms = PLAIN,
    stream_id: str = "s",
    caller: str = "",
) -> ResponseSpec:
    """A spec for this request. Without `framer`, it has the framer of a completion."""
    return ResponseSpec(
        generation=request,
        framer=framer or CompletionFramer(request, "cmpl-1", 0),
        error_body=error_body,
        terms=terms,
        request_id=f"request-{stream_id}",
        stream_id=stream_id,
        caller=caller,
        has_key=True,
    )


class NoWriter:
    """A writer that never accepts bytes."""

    unsent_bytes = 0

    def wake(self) -> None: ...

    def write_now(self, frame: bytes) -> int | None:
        return None

    def abort(self) -> None: ...


class RecordingUpstream:
    """Records what a response sends to the engine."""

    def __init__(self) -> None:
        self.cancels: list[tuple[tuple[Rid, ...], FinishReason]] = []
        self.sent: list[FromApi] = []

    def cancel(self, rids: Iterable[Rid], reason: FinishReason) -> None:
        self.cancels.append((tuple(rids), reason))

    def send(self, message: FromApi) -> None:
        self.sent.append(message)


def response_context(
    registry: ResponseRegistry | None = None, upstream: RecordingUpstream | None = None, now_s: float = 0.0
) -> ResponseContext:
    """The context that responses share. Its clock, and that of a registry made here, always shows `now_s`."""
    return ResponseContext(
        upstream=upstream or RecordingUpstream(),
        registry=registry or ResponseRegistry(StreamsConfig(), lambda: now_s),
        metrics=Metrics(),
        log=record_log()[0],
        clock=lambda: now_s,
    )
