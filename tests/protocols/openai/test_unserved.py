"""Fields that are known but not served: refused by name, but accepted with a value that asks for nothing."""

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
def test_unserved_field_is_refused_by_name(field: str, value: Any) -> None:
    """Unless the value is listed as neutral for this field."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({field: value}, CHAT)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.param, refusal.code) == (400, field, "unsupported_parameter")
    assert f"`{field}`" in refusal.message


@pytest.mark.parametrize("field", sorted(CHAT))
def test_unserved_field_is_accepted_with_a_neutral_value(field: str) -> None:
    """Null, an empty list, the neutral values of the field, and false unless true is one of these."""
    off = () if any(neutral is True for neutral in CHAT[field]) else (False,)
    for value in (None, [], *off, *CHAT[field]):
        if (field, value) not in OPPOSITE:
            refuse_unserved({field: value}, CHAT)


@pytest.mark.parametrize(("field", "value"), OPPOSITE)
def test_empty_value_is_refused_when_it_asks_for_something(field: str, value: Any) -> None:
    """These values switch off reasoning or all samplers."""
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
def test_false_is_refused_for_a_field_whose_default_is_true(field: str) -> None:
    """False would change the answer: no sampling, or special tokens in the text."""
    with pytest.raises(RequestError) as caught:
        refuse_unserved({field: False}, CHAT)
    assert caught.value.refusal.param == field


@pytest.mark.parametrize("field", ["maxTokens", "stopSequences", "topK", "topP", "num_return_sequences", "p", "k"])
def test_refusal_of_a_name_from_another_api_names_the_served_field(field: str) -> None:
    with pytest.raises(RequestError, match=f"the field for it is `{SERVED_AS[field]}`"):
        refuse_unserved({field: 3}, CHAT)


def test_best_of_is_refused_in_chat() -> None:
    """In OpenAI's API, only completions have it."""
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
def test_values_that_only_look_neutral_are_refused(field: str, value: Any) -> None:
    """Zero is not false, and an empty object asks for something."""
    with pytest.raises(RequestError):
        refuse_unserved({field: value}, COMPLETIONS)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("option", sorted(SluicewayOptions.model_fields))
def test_an_option_of_sluiceway_at_the_top_level_is_refused(endpoint: str, option: str) -> None:
    """If it were ignored, a client that wants to resume its stream would notice only after the stream broke."""
    parse = {"chat": parse_chat, "completions": parse_completion}[endpoint]
    body = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}]}
    with pytest.raises(RequestError, match="belongs into the object `sluiceway`") as caught:
        parse(json.dumps(body | {option: True}).encode())
    assert caught.value.refusal.param == option


def test_all_options_at_the_top_level_are_named() -> None:
    """The fields are in the order in which they are documented."""
    with pytest.raises(RequestError, match="`resumable` and `stream_id` belong into"):
        refuse_misplaced({"stream_id": "s", "resumable": True}, ("resumable", "stream_id"))


def test_an_option_at_the_top_level_is_accepted_when_it_is_null() -> None:
    refuse_misplaced({"resumable": None, "else": 1}, ("resumable", "stream_id"))


def test_a_neutral_number_may_be_an_integer_or_a_float() -> None:
    """JSON has only one type for both."""
    refuse_unserved({"length_penalty": 1}, CHAT)
    refuse_unserved({"length_penalty": 1.0}, CHAT)


def test_add_special_tokens_is_neutral_for_completions_only() -> None:
    """The tokenizer adds them to a plain prompt. A chat has them from its template already."""
    refuse_unserved({"add_special_tokens": True}, COMPLETIONS)
    with pytest.raises(RequestError):
        refuse_unserved({"add_special_tokens": True}, CHAT)


def test_a_field_in_no_table_is_ignored() -> None:
    """SDKs send new fields every month."""
    refuse_unserved({"brand_new": {"x": 1}, "user": "u", "metadata": {}}, CHAT)


def test_all_unserved_fields_are_named_in_alphabetical_order() -> None:
    """So the error does not depend on their order in the body."""
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
def test_fields_of_other_servers_that_change_the_answer_are_refused(endpoint: str, field: str, value: Any) -> None:
    parse = {"chat": parse_chat, "completions": parse_completion}[endpoint]
    body = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}], field: value}
    with pytest.raises(RequestError) as caught:
        parse(json.dumps(body).encode())
    assert (caught.value.refusal.code, caught.value.refusal.param) == ("unsupported_parameter", field)


def test_every_other_name_leads_to_a_field_that_both_endpoints_serve() -> None:
    assert SERVED_AS.keys() <= COMPLETIONS.keys()
    assert set(SERVED_AS.values()) <= ChatFields.model_fields.keys() & CompletionFields.model_fields.keys()
    with pytest.raises(RequestError, match="the field for it is `stop`"):
        refuse_unserved({"stop_sequences": ["x"]}, CHAT)


def test_no_field_is_in_two_of_the_tables_served_unserved_and_harmless() -> None:
    assert not HARMLESS & (CHAT.keys() | COMPLETIONS.keys())
    assert not ChatFields.model_fields.keys() & (CHAT.keys() | HARMLESS)
    assert not CompletionFields.model_fields.keys() & (COMPLETIONS.keys() | HARMLESS)


def test_prediction_is_refused() -> None:
    """A client that sends it expects a faster answer, and could not notice that the field has no effect."""
    prediction = {"type": "content", "content": "def f(): pass"}
    for fields in (CHAT, COMPLETIONS):
        with pytest.raises(RequestError) as caught:
            refuse_unserved({"prediction": prediction}, fields)
        assert (caught.value.refusal.code, caught.value.refusal.param) == ("unsupported_parameter", "prediction")
        refuse_unserved({"prediction": None}, fields)
