"""Parses the bodies of chat requests: correct ones, wrong ones, and any JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt
from sluiceway.protocols.common.generation import GenerationRequest, TokenUsage
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.requests import CHAT, ChatFields, parse_chat
from sluiceway.types import SamplingParams
from support.fields import request_or_refusal

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> GenerationRequest:
    return parse_chat(json.dumps({**BODY, **fields}).encode())


def test_body_becomes_a_generation_request() -> None:
    request = parse(stream=True, stream_options={"include_usage": True}, stop="x", n=2, seed=1, user="u")
    prompt = ChatPrompt((ChatMessage(role="user", content="hi"),))
    assert request == GenerationRequest(
        model="m",
        prompts=(prompt,),
        n=2,
        sampling=SamplingParams(seed=1),
        stop=("x",),
        stream=True,
        include_usage=True,
    )


def test_framer_uses_the_options_of_its_request() -> None:
    framer = CHAT.framer(parse(n=2, return_token_ids=True), "chatcmpl-1", 5)
    start = framer.start(TokenUsage(3, 0, 0))
    assert start.count(b'"id":"chatcmpl-1"') == 2
    assert start.count(b'"model":"m"') == start.count(b'"created":5') == start.count(b'"token_ids":[]') == 2
    assert b"usage" not in start


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"{}", "model"),
        (b'{"model": "m"}', "messages"),
        (json.dumps({**BODY, "tools": [{"type": "function"}]}).encode(), "tools"),
        (json.dumps({**BODY, "temperature": 3}).encode(), "temperature"),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"x": ' + b"[" * 1_000_000, "x"),
    ],
)
def test_a_wrong_body_is_refused(body: bytes, param: str | None) -> None:
    """It may be no JSON, lack a field, have a wrong value, or ask for something that is not served."""
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)


@pytest.mark.parametrize("field", ["tools", "response_format", "brand_new", "metadata"])
@pytest.mark.parametrize("levels", [100, 3_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_field_with_deep_nesting_is_refused(field: str, levels: int, opening: str, closing: str) -> None:
    """Fields that the server does not read are refused for it too."""
    deep = f'"{field}": ' + opening * levels + "1" + closing * levels
    body = (json.dumps(BODY)[:-1] + ", " + deep + "}").encode()
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert (caught.value.refusal.code, caught.value.refusal.param) == ("nested_too_deeply", field)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "user", "text", "1", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["role", "content", "type", "text", "include_usage", "1"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({*ChatFields.model_fields, *unserved.CHAT, "user", "brand_new"}))


@settings(max_examples=400, derandomize=True)
@given(fields=st.dictionaries(FIELDS, VALUES, max_size=3))
def test_any_fields_make_a_request_or_a_refusal(fields: dict[str, Any]) -> None:
    """No other exception is raised, and each refusal has a message of a bounded length."""
    request = request_or_refusal(parse, **fields)
    assert request is None or request.n_choices >= 1
