"""The fields of a native request: one prompt or one chat, options at the top level, and no unknown fields."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.common.stream_options import StreamOptions
from sluiceway.protocols.native.requests import HINTS, NativeFields
from sluiceway.protocols.openai.requests import CompletionFields
from sluiceway.types import SamplingParams


def request_of(*, is_streamed: bool = True, **given: Any) -> GenerationRequest:
    return check(NativeFields, given).request("served", is_streamed=is_streamed)


def refusal_of(*, is_streamed: bool = True, **given: Any) -> Refusal:
    with pytest.raises(RequestError) as caught:
        request_of(is_streamed=is_streamed, **given)
    assert caught.value.refusal.status == 400
    return caught.value.refusal


def test_only_the_prompt_is_required() -> None:
    """The server has only one model, and an answer may use the whole context."""
    assert request_of(prompt="hi") == GenerationRequest(
        model="served", prompts=(TextPrompt("hi"),), n=1, sampling=SamplingParams(), stop=(), stream=True
    )


def test_every_field_reaches_the_generation_request() -> None:
    generation = request_of(
        is_streamed=False,
        model="other",
        prompt=[1, 2],
        max_tokens=9,
        temperature=0,
        stop="x",
        speculation="ngram",
        logprobs=20,
        stream_id="mine",
        slow_client="drop",
    )
    assert generation.model == "other" and generation.prompts == (TokenPrompt((1, 2)),)
    assert generation.sampling == SamplingParams(max_tokens=9, temperature=0.0, speculation="ngram", logprobs=20)
    assert (generation.stop, generation.stream) == (("x",), False)
    assert generation.stream_options == StreamOptions(stream_id="mine", slow_client="drop")


def test_messages_become_a_chat_prompt() -> None:
    """A field that is null counts as left out."""
    generation = request_of(messages=[{"role": "user", "content": "hi"}], prompt=None, model=None)
    assert generation.prompts == (ChatPrompt((ChatMessage(role="user", content="hi"),)),)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": [[1]]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": 7}, "prompt"),
        ({"messages": []}, "messages"),
        ({"prompt": "a", "model": 1}, "model"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "stream": True}, "stream"),
        ({"prompt": "a", "sluiceway": {}}, "sluiceway"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1, "min_tokens": 2}, "min_tokens"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "speculation": "on"}, "speculation"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "top_logprobs": 1}, "top_logprobs"),
        ({"prompt": "a", "stream_id": "a/b"}, "stream_id"),
        ({"prompt": "a", "on_disconnect": "detach"}, "on_disconnect"),
    ],
)
def test_wrong_and_unknown_fields_are_refused_by_name(given: dict[str, Any], param: str) -> None:
    assert refusal_of(**given).param == param


def test_an_option_for_streams_is_refused_for_an_answer_that_is_sent_whole() -> None:
    """The path of the request decides which of the two it is."""
    assert request_of(prompt="a", resumable=True).stream_options == StreamOptions(resumable=True)
    assert refusal_of(is_streamed=False, prompt="a", resumable=True).param == "resumable"


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("stream", "use `/v1/stream`"),
        ("sluiceway", "lie at the top level here"),
        ("max_new_tokens", "the field for `max_new_tokens` is `max_tokens`"),
        ("max_completion_tokens", "is `max_tokens`"),
        ("stop_sequences", "is `stop`"),
        ("num_return_sequences", "is not an option of this server."),
    ],
)
def test_refusal_of_a_name_from_another_protocol_names_the_served_field(field: str, hint: str) -> None:
    """The hint is there only if this protocol has such a field."""
    with pytest.raises(RequestError) as caught:
        check(NativeFields, {"prompt": "x", field: 1}, HINTS)
    refusal = caught.value.refusal
    assert (refusal.param, refusal.code) == (field, "unsupported_parameter")
    assert refusal.message.startswith(f"`{field}` is not an option") and hint in refusal.message


def test_unknown_options_in_an_object_are_refused_without_a_hint() -> None:
    """The hints are about top-level fields, and would be wrong inside the object `sluiceway`."""
    body = {"model": "m", "prompt": "x", "sluiceway": {"stream": True}}
    with pytest.raises(RequestError, match="`sluiceway.stream` is not an option of this server\\.$"):
        check(CompletionFields, body, HINTS)
