"""POST /v1/stream and POST /v1/generate: from a body to a `Generation`, and to the framer of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.protocols.common.generation import Generation
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.protocols.native.schema import HINTS, NativeFields
from sluiceway.protocols.openai.body import read_object
from sluiceway.protocols.openai.schema import check


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """One prompt, one answer."""

    generation: Generation

    def framer(self, *, response_id: str, model: str, created: int) -> NativeFramer:
        """What writes this request's answer. `model` is the served name, `created` seconds since 1970."""
        return NativeFramer(response_id, model, created)


def parse_native(body: bytes, served_name: str, *, is_streamed: bool) -> NativeRequest:
    """`served_name` is the model's where none is named. Raises `RequestError`, always with status 400."""
    fields = check(NativeFields, read_object(body), HINTS)
    return NativeRequest(fields.generation(served_name, is_streamed=is_streamed))
