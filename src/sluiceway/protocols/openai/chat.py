"""POST /v1/chat/completions: from the bytes of a body to a `Generation`, and to the framer of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.ipc.messages.to_tokenizer import ChatPrompt
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.body import read_object
from sluiceway.protocols.openai.framer import ChatFramer
from sluiceway.protocols.openai.request import OpenAIRequest
from sluiceway.protocols.openai.schema import ChatFields, SluicewayOptions, check


@dataclass(frozen=True, slots=True)
class ChatRequest(OpenAIRequest):
    """One conversation, `n` answers."""

    def framer(self, *, response_id: str, model: str, created: int) -> ChatFramer:
        """What writes this request's answer. `model` is the served name, `created` seconds since 1970."""
        return ChatFramer(self.response(response_id, model, created))


def parse_chat(body: bytes) -> ChatRequest:
    """Raises `RequestError`, always with status 400. Whether the model exists is not checked here."""
    read = read_object(body)
    fields = check(ChatFields, read)
    unserved.refuse_unserved(read, unserved.CHAT)
    unserved.refuse_misplaced(read, SluicewayOptions.model_fields)
    generation = fields.generation((ChatPrompt(fields.messages),))
    return ChatRequest(generation, fields.include_usage, bool(fields.return_token_ids))
