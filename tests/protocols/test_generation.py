"""The lowered request."""

from __future__ import annotations

import pytest

from sluiceway.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt, TextPrompt
from sluiceway.protocols.generation import Generation
from sluiceway.types import SamplingParams


def test_choices_are_prompts_times_n_when_there_are_several() -> None:
    """Prompt-major: choice j of prompt i has the index i * n + j."""
    prompts = (TextPrompt("a"), TextPrompt("b"))
    generation = Generation(model="m", prompts=prompts, n=3, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.n_choices == 6


@pytest.mark.parametrize(
    ("prompt", "field"),
    [(TextPrompt("a"), "prompt"), (ChatPrompt((ChatMessage(role="user", content="a"),)), "messages")],
)
def test_prompt_field_is_what_the_protocol_calls_it(prompt: Prompt, field: str) -> None:
    """For errors about the prompt that are found where it is tokens already."""
    generation = Generation(model="m", prompts=(prompt,), n=1, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.prompt_field == field
