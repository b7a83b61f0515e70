"""The four forms of a prompt, and refusals of other values."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_tokenizer import Prompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.fields import MAX_CHOICES, lower_prompt


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        (" \0\ufeff", (TextPrompt(" \0\ufeff"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([[1, 2], [0]], (TokenPrompt((1, 2)), TokenPrompt((0,)))),
        (["a"] * MAX_CHOICES, (TextPrompt("a"),) * MAX_CHOICES),
        ([7] * 1000, (TokenPrompt((7,) * 1000),)),
    ],
)
def test_prompt_may_have_any_of_its_forms(value: Any, prompts: tuple[Prompt, ...]) -> None:
    """A list of token ids is one prompt; a list of texts is several."""
    assert lower_prompt(value) == prompts


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "prompt"),
        (1, "prompt"),
        ({}, "prompt"),
        ("", "prompt"),
        ("\ud800", "prompt"),
        ([], "prompt"),
        ([None], "prompt[0]"),
        ([True], "prompt[0]"),
        ([1.0], "prompt[0]"),
        ([{}], "prompt[0]"),
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        (["a", "\udfff"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([2**31], "prompt[0]"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        ([[1], 2], "prompt[1]"),
        ([[1], ["a"]], "prompt[1][0]"),
        ([[1, [2]]], "prompt[0][1]"),
        (["a"] * (MAX_CHOICES + 1), "prompt"),
        ([[1]] * (MAX_CHOICES + 1), "prompt"),
    ],
)
def test_wrong_prompt_or_token_is_named_by_its_index(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        lower_prompt(value)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)
    assert f"`{param}`" in caught.value.refusal.message


def test_the_first_wrong_prompt_is_quoted() -> None:
    with pytest.raises(RequestError, match="not null"):
        lower_prompt([None, {}])
