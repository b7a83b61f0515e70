"""The lowered request."""

from __future__ import annotations

import pytest

from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.types import SamplingParams


def test_choices_are_prompts_times_n_when_there_are_several() -> None:
    """Prompt-major: choice j of prompt i has the index i * n + j."""
    prompts = (TextPrompt("a"), TextPrompt("b"))
    generation = GenerationRequest(model="m", prompts=prompts, n=3, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.n_choices == 6


@pytest.mark.parametrize(
    ("prompt", "field"),
    [(TextPrompt("a"), "prompt"), (ChatPrompt((ChatMessage(role="user", content="a"),)), "messages")],
)
def test_prompt_field_is_what_the_protocol_calls_it(prompt: Prompt, field: str) -> None:
    """For errors about the prompt that are found where it is tokens already."""
    generation = GenerationRequest(model="m", prompts=(prompt,), n=1, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.prompt_field == field


def test_nothing_is_lost_for_the_answer_when_the_text_goes() -> None:
    """As many choices, and the same name for the prompt; but what was said takes no room any more."""
    prompts = (TextPrompt("a" * 1000), TokenPrompt((1, 2)), ChatPrompt((ChatMessage(role="user", content="a" * 1000),)))
    for prompt in prompts:
        whole = GenerationRequest(
            model="m", prompts=(prompt,) * 2, n=3, sampling=SamplingParams(), stop=(), stream=False
        )
        lean = whole.without_text()
        assert (lean.n_choices, lean.prompt_field, lean.model) == (6, whole.prompt_field, "m")
        assert len(repr(lean)) < 1000
