"""The request that every protocol makes from its body."""

from __future__ import annotations

import pytest

from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.types import SamplingParams


def test_number_of_choices_is_prompts_times_n() -> None:
    prompts = (TextPrompt("a"), TextPrompt("b"))
    generation = GenerationRequest(model="m", prompts=prompts, n=3, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.n_choices == 6


@pytest.mark.parametrize(
    ("prompt", "field"),
    [(TextPrompt("a"), "prompt"), (ChatPrompt((ChatMessage(role="user", content="a"),)), "messages")],
)
def test_prompt_field_is_the_name_that_the_client_used(prompt: Prompt, field: str) -> None:
    """Errors that are found later, in the tokens of the prompt, name this field."""
    generation = GenerationRequest(model="m", prompts=(prompt,), n=1, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.prompt_field == field


def test_request_without_text_has_all_that_the_answer_needs() -> None:
    """The number of choices, the model and the name of the prompt's field. It needs little memory."""
    prompts = (TextPrompt("a" * 1000), TokenPrompt((1, 2)), ChatPrompt((ChatMessage(role="user", content="a" * 1000),)))
    for prompt in prompts:
        whole = GenerationRequest(
            model="m", prompts=(prompt,) * 2, n=3, sampling=SamplingParams(), stop=(), stream=False
        )
        lean = whole.without_text()
        assert (lean.n_choices, lean.prompt_field, lean.model) == (6, whole.prompt_field, "m")
        assert len(repr(lean)) < 1000
