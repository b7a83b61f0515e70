"""Orders of what an answer is to be, as `Exchange` would make them of a request."""

from __future__ import annotations

from sluiceway.api.responses.answer import Order
from sluiceway.protocols.common.generation import Framer
from sluiceway.protocols.native.request import NativeRequest
from sluiceway.protocols.openai.completions import CompletionRequest
from sluiceway.protocols.openai.errors import error_body
from sluiceway.response.terms import Terms

PLAIN = Terms()


def order_of(
    request: CompletionRequest | NativeRequest,
    framer: Framer | None = None,
    *,
    terms: Terms = PLAIN,
    stream_id: str = "s",
    caller: str = "",
) -> Order:
    """With the framer of the request itself, if no other is given."""
    return Order(
        generation=request.generation,
        framer=framer or request.framer(response_id="cmpl-1", model="m", created=0),
        error_body=error_body,
        terms=terms,
        request_id=f"request-{stream_id}",
        stream_id=stream_id,
        caller=caller,
    )
