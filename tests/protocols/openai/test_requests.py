"""Ranges, defaults and types of the fields of chat and completions."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.common.fields import (
    MAX_LOGPROBS,
    check,
)
from sluiceway.protocols.openai.requests import (
    COMPLETION_MAX_TOKENS,
    MAX_COMPLETION_LOGPROBS,
    ChatFields,
    CompletionFields,
)
from sluiceway.types import SamplingParams
from support.fields import CHAT, chat, completion, refusal_of


def sampling(**fields: Any) -> SamplingParams:
    return chat(**fields).request(()).sampling


def test_defaults_are_those_of_the_protocol() -> None:
    """A chat may use the whole context; a completion has 16 tokens."""
    request = chat().request(())
    assert request.sampling == SamplingParams()
    assert (request.model, request.n, request.stop, request.stream) == ("m", 1, (), False)
    assert completion().request(()).sampling == SamplingParams(max_tokens=COMPLETION_MAX_TOKENS)


def test_missing_field_is_named_in_the_refusal() -> None:
    for fields, body, param in (
        (ChatFields, {"messages": CHAT["messages"]}, "model"),
        (ChatFields, {"model": "m"}, "messages"),
        (CompletionFields, {"model": "m"}, "prompt"),
    ):
        with pytest.raises(RequestError) as caught:
            check(fields, body)
        assert caught.value.refusal.param == param
        assert caught.value.refusal.code == "missing_required_parameter"


def test_max_completion_tokens_is_used_when_both_limits_are_given() -> None:
    """`max_tokens` is its deprecated name, but must be valid too."""
    assert sampling(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert sampling(max_tokens=5).max_tokens == 5
    assert sampling(max_completion_tokens=7).max_tokens == 7
    assert refusal_of(chat, max_tokens=0, max_completion_tokens=7).param == "max_tokens"


def test_a_stream_includes_its_usage_only_when_the_request_asks_for_it() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).request(()).include_usage
    for options in ({}, None, {"include_usage": False}, {"include_usage": None}, {"other": 1}):
        assert not chat(stream=True, stream_options=options).request(()).include_usage


def test_usage_in_every_chunk_is_refused() -> None:
    """Other servers have this option. Its value false asks for nothing, and is accepted."""
    chat(stream=True, stream_options={"continuous_usage_stats": False})
    refusal = refusal_of(chat, stream=True, stream_options={"continuous_usage_stats": True})
    assert (refusal.param, refusal.code) == ("stream_options.continuous_usage_stats", "unsupported_parameter")


def test_best_of_is_refused_unless_it_equals_n() -> None:
    """When it equals `n`, it asks for nothing more."""
    completion(best_of=1)
    completion(best_of=3, n=3)
    assert refusal_of(completion, best_of=2).param == "best_of"
    assert refusal_of(completion, best_of=1, n=2).param == "best_of"
    assert refusal_of(completion, best_of=10**400).param == "best_of"


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": MAX_LOGPROBS}, MAX_LOGPROBS),
    ],
)
def test_chat_asks_for_logprobs_by_a_flag_and_a_number(given: dict[str, Any], n: int) -> None:
    """With the number 0, each token has its own logprob, but no likeliest tokens."""
    assert chat(**given).request(()).sampling.logprobs == n


@pytest.mark.parametrize("n", [None, 0, MAX_COMPLETION_LOGPROBS])
def test_completion_asks_for_logprobs_by_their_number(n: int | None) -> None:
    """With 0, each token has its own logprob; with null, it has none."""
    assert completion(logprobs=n).request(()).sampling.logprobs == n


@pytest.mark.parametrize("value", [True, False, -1, MAX_COMPLETION_LOGPROBS + 1, "3"])
def test_completion_refuses_other_values_of_logprobs(value: Any) -> None:
    """True and false are values of the field in chat."""
    assert refusal_of(completion, logprobs=value).param == "logprobs"


@pytest.mark.parametrize("value", [21, 10**400, True])
def test_top_logprobs_above_20_are_refused(value: Any) -> None:
    assert refusal_of(chat, logprobs=True, top_logprobs=value).param == "top_logprobs"


def test_prompts_times_n_are_at_most_128_choices() -> None:
    completion(prompt=["x"] * 64, n=2)
    assert refusal_of(completion, prompt=["x"] * 64, n=3).param == "n"


def test_slow_client_has_at_most_32_keys() -> None:
    """Unknown keys are refused later, where the policies are known."""
    refusal = refusal_of(chat, sluiceway={"slow_client": {f"k{i}": 0 for i in range(33)}})
    assert refusal.param == "sluiceway.slow_client" and "at most 32 keys" in refusal.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"sluiceway": {"progress": "comments"}}, "sluiceway.progress"),
    ],
)
def test_a_field_is_refused_without_the_field_that_it_needs(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(chat, **fields).param == param
