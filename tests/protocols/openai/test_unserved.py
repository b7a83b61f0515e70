"""What is known and not served: accepted when it asks for nothing, refused by name when it asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.common.other_names import SERVED_AS
from sluiceway.protocols.openai.requests import (
    ChatFields,
    CompletionFields,
    SluicewayOptions,
    parse_chat,
    parse_completion,
)
from sluiceway.protocols.openai.unserved import (
    CHAT,
    COMPLETIONS,
    HARMLESS,
    refuse_misplaced,
    refuse_unserved,
)

ASKING: list[tuple[str, Any]] = [
    (field, value)
    for field in sorted(CHAT)
    for value in (7, 0.5, "please", {"a": 1}, [{"a": 1}], True)
    if not any(value is neutral for neutral in CHAT[field])
]

OPPOSITE: list[tuple[str, Any]] = [("enable_thinking", False), ("think", False), ("samplers", [])]
"""Empty values that would change the answer of a server that has the field."""


@pytest.mark.parametrize(("field", "value"), ASKING)
def test_field_is_refused_by_name_when_it_asks(field: str, value: Any) -> None:
    """Whatever it asks, unless the value is listed as neutral for just this field."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({field: value}, CHAT)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.param, refusal.code) == (400, field, "unsupported_parameter")
    assert f"`{field}`" in refusal.message


@pytest.mark.parametrize("field", sorted(CHAT))
def test_field_is_accepted_when_it_asks_for_nothing(field: str) -> None:
    """Null, false unless true asks for nothing, an empty list, and the field's own neutral values."""
    off = () if any(neutral is True for neutral in CHAT[field]) else (False,)
    for value in (None, [], *off, *CHAT[field]):
        if (field, value) not in OPPOSITE:
            refuse_unserved({field: value}, CHAT)


@pytest.mark.parametrize(("field", "value"), OPPOSITE)
def test_empty_value_is_refused_when_it_asks_for_something(field: str, value: Any) -> None:
    """Without an answer that thinks, or without the samplers."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({field: value}, CHAT)
    assert (caught.value.refusal.param, caught.value.refusal.code) == (field, "unsupported_parameter")
    refuse_unserved({field: None}, CHAT)


@pytest.mark.parametrize(
    "field",
    [
        "do_sample",
        "skip_special_tokens",
        "add_generation_prompt",
        "add_bos_token",
        "incremental_output",
        "strip_stop",
        "trim_stop",
    ],
)
def test_false_is_refused_when_the_field_is_usually_true(field: str) -> None:
    """Without sampling an answer is another one; so is one with special tokens in it."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({field: False}, CHAT)
    assert caught.value.refusal.param == field


@pytest.mark.parametrize("field", ["maxTokens", "stopSequences", "topK", "topP", "num_return_sequences", "p", "k"])
def test_served_field_is_told_when_another_api_names_it_otherwise(field: str) -> None:
    """In camel case, or shorter."""
    with pytest.raises(RequestError, match=f"the field for it is `{SERVED_AS[field]}`"):
        refuse_unserved({field: 3}, CHAT)


def test_best_of_is_refused_when_a_chat_asks_for_it() -> None:
    """Only completions have it in OpenAI's API."""
    with pytest.raises(RequestError, match="`best_of` is not served"):
        refuse_unserved({"best_of": 2}, CHAT)
    refuse_unserved({"best_of": 2}, COMPLETIONS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_logprobs", 0),
        ("web_search_options", {}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "text", "schema": {}}),
        ("tool_choice", "required"),
        ("modalities", ["text", "audio"]),
        ("top_logprobs", 1),
        ("skip_special_tokens", 1),
        ("reasoning_effort", "low"),
    ],
)
def test_field_is_refused_when_the_value_only_looks_like_nothing(field: str, value: Any) -> None:
    """Zero is not false, and an empty object is something."""
    with pytest.raises(RequestError):
        refuse_unserved({field: value}, COMPLETIONS)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("option", sorted(SluicewayOptions.model_fields))
def test_our_own_option_is_refused_when_it_is_not_in_its_object(endpoint: str, option: str) -> None:
    """Who believes that a stream can be resumed must not find out when it is cut."""
    parse = {"chat": parse_chat, "completions": parse_completion}[endpoint]
    body = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}]}
    with pytest.raises(RequestError, match="belongs into the object `sluiceway`") as caught:
        parse(json.dumps(body | {option: True}).encode())
    assert caught.value.refusal.param == option


def test_all_options_are_named_when_several_are_not_in_their_object() -> None:
    """In the order in which they are documented."""
    with pytest.raises(RequestError, match="`resumable` and `stream_id` belong into"):
        refuse_misplaced({"stream_id": "s", "resumable": True}, ("resumable", "stream_id"))


def test_our_own_option_is_no_mistake_when_it_is_null() -> None:
    """As with every field."""
    refuse_misplaced({"resumable": None, "else": 1}, ("resumable", "stream_id"))


def test_one_is_neutral_when_written_as_integer_or_float() -> None:
    """JSON has one kind of number."""
    refuse_unserved({"length_penalty": 1}, CHAT)
    refuse_unserved({"length_penalty": 1.0}, CHAT)


def test_special_tokens_are_neutral_by_endpoint_when_given() -> None:
    """A template has written them already; a plain prompt gets them from the tokenizer."""
    refuse_unserved({"add_special_tokens": True}, COMPLETIONS)
    with pytest.raises(RequestError):
        refuse_unserved({"add_special_tokens": True}, CHAT)


def test_unknown_field_is_ignored_when_it_is_in_no_table() -> None:
    """SDKs send new fields every month."""
    refuse_unserved({"brand_new": {"x": 1}, "user": "u", "metadata": {}}, CHAT)


def test_all_fields_are_named_when_several_ask() -> None:
    """Alphabetical, so that the answer does not depend on the order in the body."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({"tools": [{}], "audio": {}, "echo": True, "user": "u"}, CHAT)
    assert caught.value.refusal.param == "audio"
    assert all(f"`{field}`" in caught.value.refusal.message for field in ("audio", "echo", "tools"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_sequences", ["x"]),
        ("max_new_tokens", 5),
        ("top_n_sigma", 1.0),
        ("repeat_last_n", 64),
        ("no_repeat_ngram_size", 3),
        ("custom_logit_processor", "{}"),
        ("enable_thinking", True),
        ("num_predict", 5),
        ("mirostat_mode", 2),
        ("typical", 0.5),
        ("banned_strings", ["x"]),
        ("samplers", ["top_k"]),
        ("system_prompt", "Be brief."),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_field_of_another_server_is_refused_when_it_would_change_the_answer(
    endpoint: str, field: str, value: Any
) -> None:
    """Whichever server its client was written for."""
    parse = {"chat": parse_chat, "completions": parse_completion}[endpoint]
    body = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}], field: value}
    with pytest.raises(RequestError) as caught:
        parse(json.dumps(body).encode())
    assert (caught.value.refusal.code, caught.value.refusal.param) == ("unsupported_parameter", field)


def test_the_field_that_is_served_is_told_when_only_the_name_differs() -> None:
    """Each of them is in the table, and leads to a field that both endpoints serve."""
    assert SERVED_AS.keys() <= COMPLETIONS.keys()
    assert set(SERVED_AS.values()) <= ChatFields.model_fields.keys() & CompletionFields.model_fields.keys()
    with pytest.raises(RequestError, match="the field for it is `stop`"):
        refuse_unserved({"stop_sequences": ["x"]}, CHAT)


def test_tables_are_disjoint_when_fields_are_served() -> None:
    """A field that is served is not refused, and none is harmless and refused at once."""
    assert not HARMLESS & CHAT.keys()
    assert not ChatFields.model_fields.keys() & (CHAT.keys() | HARMLESS)
    assert not CompletionFields.model_fields.keys() & (COMPLETIONS.keys() | HARMLESS)


def test_prediction_is_refused_when_there_is_one() -> None:
    """A client that sends it expects a faster answer, and no answer could tell it that the field has no effect."""
    prediction = {"type": "content", "content": "def f(): pass"}
    for fields in (CHAT, COMPLETIONS):
        with pytest.raises(RequestError) as caught:
            refuse_unserved({"prediction": prediction}, fields)
        assert (caught.value.refusal.code, caught.value.refusal.param) == ("unsupported_parameter", "prediction")
        refuse_unserved({"prediction": None}, fields)
