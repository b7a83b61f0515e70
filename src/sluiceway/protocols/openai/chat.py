"""POST /v1/chat/completions: turns the bytes of a body into a `GenerationRequest`."""

from __future__ import annotations

from sluiceway.ipc.messages.to_tokenizer import ChatPrompt
from sluiceway.protocols.common.body import read_object
from sluiceway.protocols.common.endpoint import Endpoint
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.framer import ChatFramer
from sluiceway.protocols.openai.schema import ChatFields, SluicewayOptions


def parse_chat(body: bytes) -> GenerationRequest:
    """Raises `RequestError`, always with status 400. Does not check whether the model exists."""
    values = read_object(body)
    fields = check(ChatFields, values)
    unserved.refuse_unserved(values, unserved.CHAT)
    unserved.refuse_misplaced(values, SluicewayOptions.model_fields)
    return fields.request((ChatPrompt(fields.messages),))


CHAT = Endpoint(
    path="/v1/chat/completions",
    id_prefix="chatcmpl",
    parser=lambda body, _served_name: parse_chat(body),
    framer=ChatFramer,
)
