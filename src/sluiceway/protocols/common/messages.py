"""The `messages` of a chat request: turns with their text parts joined, or a 400 that names the part."""

from __future__ import annotations

from typing import Any

from sluiceway.errors import invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage
from sluiceway.protocols.common.values import lower_each, require_list, require_text, shorten, wrong

# OpenAI renamed the system role for its newer models; chat templates know the old name.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNSERVED_ROLES = ("tool", "function")
_UNSERVED_FIELDS = ("tool_calls", "function_call", "audio", "images", "prefix", "partial")

_PART_TEXT = {"text": "text", "refusal": "refusal"}
"""For each type of part that is text, the field that holds it."""


def lower_messages(value: object, path: str = "messages") -> tuple[ChatMessage, ...]:
    """The turns in order, at least one."""
    items = require_list(value, path, expected="a list of messages")
    if not items:
        raise invalid(f"`{path}` must hold at least one message.", path)
    return tuple(_lower_message(item, f"{path}[{i}]") for i, item in enumerate(items))


def _lower_message(value: object, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong(value, path, "an object with `role` and `content`")
    role = _lower_role(value.get("role"), f"{path}.role")
    for field in _UNSERVED_FIELDS:
        if value.get(field):
            raise invalid(
                f"`{path}.{field}` is not served by this server.", f"{path}.{field}", code="unsupported_parameter"
            )
    name = value.get("name")
    return ChatMessage(
        role=role,
        content=_lower_content(value, role, path),
        name=None if name is None else require_text(name, f"{path}.name"),
    )


def _lower_role(value: object, path: str) -> str:
    if value in _UNSERVED_ROLES:
        raise invalid(
            f"`{path}`: messages of the role {shorten(value)} are not served by this server.",
            path,
            code="unsupported_value",
        )
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise wrong(value, path, "one of " + ", ".join(f'"{known}"' for known in _ROLES))
    return role


def _lower_content(message: dict[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return require_text(content, f"{path}.content")
    if content is None and role == "assistant" and message.get("refusal") is not None:
        return require_text(message["refusal"], f"{path}.refusal")  # an answer of OpenAI's, sent back as it came
    if "content" not in message:
        raise invalid(f"`{path}.content` is required.", f"{path}.content", code="missing_required_parameter")
    parts = require_list(content, f"{path}.content", expected="a string or a list of parts")
    if not parts:
        raise invalid(f"`{path}.content` must hold at least one part.", f"{path}.content")
    return "".join(lower_each(lambda one: _part_text(one[1], role, f"{path}.content[{one[0]}]"), enumerate(parts)))


def _part_text(part: object, role: str, path: str) -> str:
    if not isinstance(part, dict):
        raise wrong(part, path, "an object with `type` and `text`")
    kind = part.get("type")
    field = _PART_TEXT.get(kind) if isinstance(kind, str) else None
    if field is None or (field == "refusal" and role != "assistant"):
        raise invalid(
            f'`{path}.type` must be "text", not {shorten(kind)}: this server takes text only.',
            f"{path}.type",
            code="unsupported_value",
        )
    return require_text(part.get(field), f"{path}.{field}")
