"""Completion requests from their bytes: whole ones, and anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_api import Delta
from sluiceway.ipc.messages.to_tokenizer import TextPrompt, TokenPrompt
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.requests import COMPLETIONS, CompletionFields, parse_completion
from sluiceway.types import SamplingParams

BODY: dict[str, Any] = {"model": "m", "prompt": "hi"}


def parse(**fields: Any) -> GenerationRequest:
    return parse_completion(json.dumps({**BODY, **fields}).encode())


def test_request_is_lowered_when_it_is_whole() -> None:
    """With the default limit."""
    request = parse(prompt=[[1], [2, 3]], n=2, return_token_ids=True)
    sampling = SamplingParams(max_tokens=16)
    prompts = (TokenPrompt((1,)), TokenPrompt((2, 3)))
    assert request == GenerationRequest(
        model="m", prompts=prompts, n=2, sampling=sampling, stop=(), stream=False, return_token_ids=True
    )


def test_framer_follows_the_request_when_made() -> None:
    """It has a place for every choice, and keeps the token that reaches the limit for the finish."""
    framer = COMPLETIONS.framer(parse(prompt=["a", "b"], n=2, max_tokens=2), "cmpl-1", 5)
    assert b'"id":"cmpl-1"' in framer.delta(3, Delta(1, "x", (1,)))
    assert framer.delta(3, Delta(1, "y", (2,))) == b""


@pytest.mark.parametrize("prompt", [" ", "\0", "\ufeff"])
def test_prompt_is_served_when_it_is_odd_but_text(prompt: str) -> None:
    """Blanks and NUL are characters."""
    assert parse(prompt=prompt).prompts == (TextPrompt(prompt),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True}, "echo"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"n": 10**9}, "n"),
    ],
)
def test_field_is_named_when_it_cannot_be_served(fields: dict[str, Any], param: str) -> None:
    """Always 400."""
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)


@pytest.mark.parametrize(
    "fields", [{"echo": False}, {"suffix": ""}, {"suffix": None}, {"logprobs": None}, {"best_of": 1}, {"user": "u"}]
)
def test_field_is_accepted_when_it_asks_for_nothing(fields: dict[str, Any]) -> None:
    """Clients send their defaults."""
    assert parse(**fields) == parse()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", 10**400, 2**31]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({*CompletionFields.model_fields, *unserved.COMPLETIONS, "brand_new"}))


@settings(max_examples=400, derandomize=True)
@given(fields=st.dictionaries(FIELDS, VALUES, max_size=3))
def test_request_gives_a_generation_or_a_refusal_when_fields_are_anything(fields: dict[str, Any]) -> None:
    """Nothing else comes out, and a refusal always says something."""
    try:
        request = parse(**fields)
    except RequestError as error:
        assert error.refusal.status == 400
        assert error.refusal.message
        assert len(error.refusal.message) < 600
    else:
        assert request.n_choices >= 1 and request.sampling.max_tokens is not None
