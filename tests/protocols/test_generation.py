"""The lowered request."""

from __future__ import annotations

from sluiceway.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.generation import Generation
from sluiceway.types import SamplingParams


def test_choices_are_prompts_times_n_when_there_are_several() -> None:
    """Prompt-major: choice j of prompt i has the index i * n + j."""
    prompts = (TextPrompt("a"), TextPrompt("b"))
    generation = Generation(model="m", prompts=prompts, n=3, sampling=SamplingParams(), stop=(), stream=False)
    assert generation.n_choices == 6
