"""Conversations: roles, parts, and the path to whatever is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_tokenizer import ChatMessage
from sluiceway.protocols.common.fields import lower_messages


def lower(*messages: Any) -> tuple[ChatMessage, ...]:
    return lower_messages(list(messages))


def refusal_of(value: Any) -> Refusal:
    with pytest.raises(RequestError) as caught:
        lower_messages(value)
    assert caught.value.refusal.status == 400
    return caught.value.refusal


def test_turns_keep_their_order_when_lowered() -> None:
    """One of each role that is served; developer is the newer name of system."""
    roles = ("system", "developer", "user", "assistant")
    lowered = lower(*({"role": role, "content": role} for role in roles))
    assert [(message.role, message.content) for message in lowered] == [
        ("system", "system"),
        ("system", "developer"),
        ("user", "user"),
        ("assistant", "assistant"),
    ]


def test_parts_are_joined_in_order_when_content_is_a_list() -> None:
    """Nothing is put between them."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": " b"}]
    assert lower({"role": "user", "content": parts})[0].content == "a b"


def test_name_is_kept_when_given_and_absent_when_null() -> None:
    """Templates may show it."""
    assert lower({"role": "user", "content": "", "name": "Ann"}) == (ChatMessage(role="user", content="", name="Ann"),)
    assert lower({"role": "user", "content": "", "name": None})[0].name is None


def test_answer_of_ours_is_taken_back_when_a_client_sends_its_dump() -> None:
    """Chat loops append the message as the SDK dumps it, with every key."""
    dump = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert lower(dump) == (ChatMessage(role="assistant", content="hi"),)


def test_refusal_is_text_when_the_assistant_said_it() -> None:
    """As a part, or as OpenAI's own field beside null content."""
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    field = {"role": "assistant", "content": None, "refusal": "No."}
    assert [message.content for message in lower(part, field)] == ["No.", "No."]


def test_null_character_is_text_when_it_is_in_a_message() -> None:
    """It is a character like others; the tokenizer has a token for it."""
    assert lower({"role": "user", "content": "a\0b"})[0].content == "a\0b"


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "User", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "\ud800", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].role"),
        ([{"role": "function", "content": "x", "name": "f"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": None, "refusal": "x"}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "refusal": 1}], "messages[0].refusal"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": "a\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"], "text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        ([{"role": "user", "content": "x", "name": "\ud800"}], "messages[0].name"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "1"}}], "messages[0].audio"),
    ],
)
def test_field_at_fault_is_named_when_messages_are_wrong(value: Any, param: str) -> None:
    """With its whole path."""
    refusal = refusal_of(value)
    assert refusal.param == param
    assert f"`{param}`" in refusal.message


def test_content_that_is_left_out_is_said_to_be_missing() -> None:
    """Not to be null."""
    refusal = refusal_of([USER, {"role": "user"}])
    assert (refusal.param, refusal.code) == ("messages[1].content", "missing_required_parameter")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video", "Text"])
def test_part_is_refused_by_its_type_when_it_is_no_text(kind: str) -> None:
    """Only text is read; nothing is fetched from an address in a request."""
    parts = [{"type": "text", "text": "x"}, {"type": kind, kind: {"url": "http://127.0.0.1/"}}]
    refusal = refusal_of([USER, {"role": "user", "content": parts}])
    assert refusal.param == "messages[1].content[1].type"
    assert f'"{kind}"' in refusal.message
