"""A request of either endpoint after its body was read: what to generate, and how to tell it."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.protocols.common.generation import Generation
from sluiceway.protocols.openai.framer import ChunkIdentity


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """A request that can be served, as far as its body shows."""

    generation: Generation
    include_usage: bool
    return_token_ids: bool

    def response(self, response_id: str, model: str, created: int) -> ChunkIdentity:
        """What all of its answer shares. `model` is the served name, `created` seconds since 1970."""
        return ChunkIdentity(
            id=response_id,
            model=model,
            created=created,
            n_choices=self.generation.n_choices,
            include_usage=self.include_usage,
            return_token_ids=self.return_token_ids,
            tells_logprobs=self.generation.sampling.logprobs is not None,
        )
