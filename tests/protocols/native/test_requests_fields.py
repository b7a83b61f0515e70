"""The fields of a native request: one prompt or one conversation, nothing unknown, and wishes among the rest."""

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


def lowered(*, is_streamed: bool = True, **given: Any) -> GenerationRequest:
    return check(NativeFields, given).request("served", is_streamed=is_streamed)


def refusal_of(*, is_streamed: bool = True, **given: Any) -> Refusal:
    with pytest.raises(RequestError) as caught:
        lowered(is_streamed=is_streamed, **given)
    assert caught.value.refusal.status == 400
    return caught.value.refusal


def test_little_is_needed_when_the_defaults_will_do() -> None:
    """The server has one model, and an answer may go to the end of the context."""
    assert lowered(prompt="hi") == GenerationRequest(
        model="served", prompts=(TextPrompt("hi"),), n=1, sampling=SamplingParams(), stop=(), stream=True
    )


def test_fields_are_lowered_when_all_are_given() -> None:
    """Each in its place."""
    generation = lowered(
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


def test_conversation_is_lowered_when_there_are_messages() -> None:
    """Null is the same as leaving a field out."""
    generation = lowered(messages=[{"role": "user", "content": "hi"}], prompt=None, model=None)
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
def test_field_is_named_when_it_is_wrong(given: dict[str, Any], param: str) -> None:
    """Nothing is ignored."""
    assert refusal_of(**given).param == param


def test_wish_for_a_stream_is_refused_when_the_answer_is_plain() -> None:
    """The path of the request says which of the two it is."""
    assert lowered(prompt="a", resumable=True).stream_options == StreamOptions(resumable=True)
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
def test_field_of_another_protocol_is_refused_with_what_to_write(field: str, hint: str) -> None:
    """Only a field that is served here is named."""
    with pytest.raises(RequestError) as caught:
        check(NativeFields, {"prompt": "x", field: 1}, HINTS)
    refusal = caught.value.refusal
    assert (refusal.param, refusal.code) == (field, "unsupported_parameter")
    assert refusal.message.startswith(f"`{field}` is not an option") and hint in refusal.message


def test_options_are_refused_without_the_hints_of_the_fields() -> None:
    """In the object `sluiceway` of other protocols they would not fit."""
    body = {"model": "m", "prompt": "x", "sluiceway": {"stream": True}}
    with pytest.raises(RequestError, match="`sluiceway.stream` is not an option of this server\\.$"):
        check(CompletionFields, body, HINTS)
