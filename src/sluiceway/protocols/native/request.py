"""POST /v1/stream and POST /v1/generate: turn the bytes of a body into a `GenerationRequest`."""

from __future__ import annotations

from sluiceway.protocols.common.body import read_object
from sluiceway.protocols.common.endpoint import Endpoint
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.protocols.native.schema import HINTS, NativeFields


def parse_native(body: bytes, served_name: str, *, is_streamed: bool) -> GenerationRequest:
    """Raises `RequestError`, always with status 400. A body that names no model asks for `served_name`."""
    return check(NativeFields, read_object(body), HINTS).request(served_name, is_streamed=is_streamed)


STREAM = Endpoint(
    path="/v1/stream",
    id_prefix="stream",
    parser=lambda body, served_name: parse_native(body, served_name, is_streamed=True),
    framer=NativeFramer,
)
GENERATE = Endpoint(
    path="/v1/generate",
    id_prefix="stream",
    parser=lambda body, served_name: parse_native(body, served_name, is_streamed=False),
    framer=NativeFramer,
)
