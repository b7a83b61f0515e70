"""Parses the bodies of completion requests: correct ones, wrong ones, and any JSON."""

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
from support.fields import request_or_refusal

BODY: dict[str, Any] = {"model": "m", "prompt": "hi"}


def parse(**fields: Any) -> GenerationRequest:
    return parse_completion(json.dumps({**BODY, **fields}).encode())


def test_body_becomes_a_generation_request() -> None:
    request = parse(prompt=[[1], [2, 3]], n=2, return_token_ids=True)
    sampling = SamplingParams(max_tokens=16)
    prompts = (TokenPrompt((1,)), TokenPrompt((2, 3)))
    assert request == GenerationRequest(
        model="m", prompts=prompts, n=2, sampling=sampling, stop=(), stream=False, return_token_ids=True
    )


def test_framer_uses_the_options_of_its_request() -> None:
    """It knows all choices, and keeps back the token that reaches the limit."""
    framer = COMPLETIONS.framer(parse(prompt=["a", "b"], n=2, max_tokens=2), "cmpl-1", 5)
    assert b'"id":"cmpl-1"' in framer.delta(3, Delta(1, "x", (1,)))
    assert framer.delta(3, Delta(1, "y", (2,))) == b""


@pytest.mark.parametrize("prompt", [" ", "\0", "\ufeff"])
def test_a_prompt_may_be_any_character(prompt: str) -> None:
    """A blank, NUL or a byte order mark too."""
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
def test_a_field_that_cannot_be_served_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)


@pytest.mark.parametrize(
    "fields", [{"echo": False}, {"suffix": ""}, {"suffix": None}, {"logprobs": None}, {"best_of": 1}, {"user": "u"}]
)
def test_a_field_that_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
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
def test_any_fields_make_a_request_or_a_refusal(fields: dict[str, Any]) -> None:
    """No other exception is raised, and each refusal has a message of a bounded length."""
    request = request_or_refusal(parse, **fields)
    assert request is None or (request.n_choices >= 1 and request.sampling.max_tokens is not None)
