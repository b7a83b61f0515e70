"""Ranges, defaults and types of the served fields, for both endpoints."""

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


def test_defaults_are_those_of_the_protocol_when_nothing_is_given() -> None:
    """Chat runs to the end of the context, completions for sixteen tokens."""
    lowered = chat().request(())
    assert lowered.sampling == SamplingParams()
    assert (lowered.model, lowered.n, lowered.stop, lowered.stream) == ("m", 1, (), False)
    assert completion().request(()).sampling == SamplingParams(max_tokens=COMPLETION_MAX_TOKENS)


def test_required_field_is_named_when_it_is_missing() -> None:
    """With a code of its own."""
    for fields, body, param in (
        (ChatFields, {"messages": CHAT["messages"]}, "model"),
        (ChatFields, {"model": "m"}, "messages"),
        (CompletionFields, {"model": "m"}, "prompt"),
    ):
        with pytest.raises(RequestError) as caught:
            check(fields, body)
        assert caught.value.refusal.param == param
        assert caught.value.refusal.code == "missing_required_parameter"


def test_newer_limit_wins_when_both_are_given() -> None:
    """`max_tokens` is the deprecated name; it must be valid all the same."""
    assert sampling(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert sampling(max_tokens=5).max_tokens == 5
    assert sampling(max_completion_tokens=7).max_tokens == 7
    assert refusal_of(chat, max_tokens=0, max_completion_tokens=7).param == "max_tokens"


def test_stream_options_are_taken_when_the_answer_is_streamed() -> None:
    """Usage is told only if it is asked for."""
    assert chat(stream=True, stream_options={"include_usage": True}).request(()).include_usage
    for options in ({}, None, {"include_usage": False}, {"include_usage": None}, {"other": 1}):
        assert not chat(stream=True, stream_options=options).request(()).include_usage


def test_running_usage_is_refused_by_name_when_it_is_asked_for() -> None:
    """Served by others, not here; asking for none of it is fine."""
    chat(stream=True, stream_options={"continuous_usage_stats": False})
    refusal = refusal_of(chat, stream=True, stream_options={"continuous_usage_stats": True})
    assert (refusal.param, refusal.code) == ("stream_options.continuous_usage_stats", "unsupported_parameter")


def test_best_of_is_refused_when_it_is_not_n() -> None:
    """Equal to n it asks for nothing."""
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
def test_chat_has_one_field_that_asks_for_logprobs_and_one_that_says_how_many(given: dict[str, Any], n: int) -> None:
    """Zero of the likeliest still is the token's own."""
    assert chat(**given).request(()).sampling.logprobs == n


@pytest.mark.parametrize("n", [None, 0, MAX_COMPLETION_LOGPROBS])
def test_completion_asks_for_logprobs_by_their_number(n: int | None) -> None:
    """Zero is not none."""
    assert completion(logprobs=n).request(()).sampling.logprobs == n


@pytest.mark.parametrize("value", [True, False, -1, MAX_COMPLETION_LOGPROBS + 1, "3"])
def test_completion_names_the_field_when_it_is_no_number_of_logprobs(value: Any) -> None:
    """It is not chat's flag."""
    assert refusal_of(completion, logprobs=value).param == "logprobs"


@pytest.mark.parametrize("value", [21, 10**400, True])
def test_top_logprobs_are_bounded_when_logprobs_are_asked_for(value: Any) -> None:
    """By twenty."""
    assert refusal_of(chat, logprobs=True, top_logprobs=value).param == "top_logprobs"


def test_choices_are_bounded_when_prompts_and_n_multiply() -> None:
    """Before anything is allocated for them."""
    completion(prompt=["x"] * 64, n=2)
    assert refusal_of(completion, prompt=["x"] * 64, n=3).param == "n"


def test_an_object_of_thresholds_has_a_bounded_size() -> None:
    """Names that are none are refused where the policies are known; only so many get there."""
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
def test_a_field_is_refused_when_another_one_that_it_needs_is_missing(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(chat, **fields).param == param
