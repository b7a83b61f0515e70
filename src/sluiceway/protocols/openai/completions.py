"""POST /v1/completions: turns the bytes of a body into a `GenerationRequest`."""

from __future__ import annotations

from sluiceway.protocols.common.body import read_object
from sluiceway.protocols.common.endpoint import Endpoint
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.framer import CompletionFramer
from sluiceway.protocols.openai.schema import CompletionFields, SluicewayOptions


def parse_completion(body: bytes) -> GenerationRequest:
    """Raises `RequestError`, always with status 400. Does not check whether the model exists."""
    values = read_object(body)
    fields = check(CompletionFields, values)
    unserved.refuse_unserved(values, unserved.COMPLETIONS)
    unserved.refuse_misplaced(values, SluicewayOptions.model_fields)
    return fields.request(fields.prompt)


COMPLETIONS = Endpoint(
    path="/v1/completions",
    id_prefix="cmpl",
    parser=lambda body, _served_name: parse_completion(body),
    framer=CompletionFramer,
)
