"""Messages of a chat: roles, parts of content, and the path of a wrong value."""

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


def test_messages_of_every_served_role_keep_their_order() -> None:
    """`developer` is the newer name of `system`."""
    roles = ("system", "developer", "user", "assistant")
    lowered = lower(*({"role": role, "content": role} for role in roles))
    assert [(message.role, message.content) for message in lowered] == [
        ("system", "system"),
        ("system", "developer"),
        ("user", "user"),
        ("assistant", "assistant"),
    ]


def test_parts_of_content_are_joined_without_a_separator() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": " b"}]
    assert lower({"role": "user", "content": parts})[0].content == "a b"


def test_name_of_a_message_is_kept() -> None:
    """Templates may show it. Null is no name."""
    assert lower({"role": "user", "content": "", "name": "Ann"}) == (ChatMessage(role="user", content="", name="Ann"),)
    assert lower({"role": "user", "content": "", "name": None})[0].name is None


def test_message_with_all_keys_of_the_sdk_is_accepted() -> None:
    """Clients append an answer to the chat as the SDK dumps it, with every key."""
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


def test_refusal_of_the_assistant_is_read_as_text() -> None:
    """It is a part of the content, or a field of a message whose content is null."""
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    field = {"role": "assistant", "content": None, "refusal": "No."}
    assert [message.content for message in lower(part, field)] == ["No.", "No."]


def test_nul_in_a_message_is_kept() -> None:
    """The tokenizer has a token for it."""
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
def test_wrong_value_is_named_by_its_whole_path(value: Any, param: str) -> None:
    refusal = refusal_of(value)
    assert refusal.param == param
    assert f"`{param}`" in refusal.message


def test_content_that_is_left_out_is_refused_as_missing_not_as_null() -> None:
    refusal = refusal_of([USER, {"role": "user"}])
    assert (refusal.param, refusal.code) == ("messages[1].content", "missing_required_parameter")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video", "Text"])
def test_part_that_is_no_text_is_refused_by_its_type(kind: str) -> None:
    """The server fetches nothing from a URL in a request."""
    parts = [{"type": "text", "text": "x"}, {"type": kind, kind: {"url": "http://127.0.0.1/"}}]
    refusal = refusal_of([USER, {"role": "user", "content": parts}])
    assert refusal.param == "messages[1].content[1].type"
    assert f'"{kind}"' in refusal.message
