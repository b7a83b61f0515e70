"""POST /v1/completions: from the bytes of a body to a `Generation`, and to the framer of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.body import read_object
from sluiceway.protocols.openai.framer import CompletionFramer
from sluiceway.protocols.openai.request import OpenAIRequest
from sluiceway.protocols.openai.schema import CompletionFields, SluicewayOptions, check


@dataclass(frozen=True, slots=True)
class CompletionRequest(OpenAIRequest):
    """One or more plain prompts, `n` continuations of each, none longer than `max_tokens`."""

    max_tokens: int

    def framer(self, *, response_id: str, model: str, created: int) -> CompletionFramer:
        """What writes this request's answer. `model` is the served name, `created` seconds since 1970."""
        return CompletionFramer(self.response(response_id, model, created), max_tokens=self.max_tokens)


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises `RequestError`, always with status 400. Whether the model exists is not checked here."""
    read = read_object(body)
    fields = check(CompletionFields, read)
    unserved.refuse_unserved(read, unserved.COMPLETIONS)
    unserved.refuse_misplaced(read, SluicewayOptions.model_fields)
    generation = fields.generation(fields.prompt)
    return CompletionRequest(generation, fields.include_usage, bool(fields.return_token_ids), fields.token_limit)
