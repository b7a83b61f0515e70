"""What a parsed request knows about its answer."""

from __future__ import annotations

from sluiceway.ipc.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.common.generation import Generation
from sluiceway.protocols.openai.framer import ChunkIdentity
from sluiceway.protocols.openai.request import OpenAIRequest
from sluiceway.types import SamplingParams


def test_response_counts_all_choices_when_there_are_prompts_and_n() -> None:
    """Its own wishes, and the identity that the server gives."""
    prompts = (TextPrompt("a"), TextPrompt("b"))
    generation = Generation(model="alias", prompts=prompts, n=2, sampling=SamplingParams(), stop=(), stream=True)
    request = OpenAIRequest(generation, include_usage=True, return_token_ids=False)
    assert request.response("cmpl-1", "served", 5) == ChunkIdentity(
        id="cmpl-1", model="served", created=5, n_choices=4, include_usage=True, return_token_ids=False
    )


def test_response_tells_logprobs_when_the_sampling_wants_them() -> None:
    """Also with none of the likeliest."""
    for n, tells in ((None, False), (0, True), (5, True)):
        sampling = SamplingParams(logprobs=n)
        generation = Generation(model="m", prompts=(TextPrompt("a"),), n=1, sampling=sampling, stop=(), stream=True)
        request = OpenAIRequest(generation, include_usage=False, return_token_ids=False)
        assert request.response("cmpl-1", "served", 5).tells_logprobs is tells
