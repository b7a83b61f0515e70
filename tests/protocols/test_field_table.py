"""Every field that the official SDK can send is served, ignored as harmless, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion_types
from openai.types.chat import completion_create_params as chat_types

from sluiceway.errors import RequestError
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.requests import ChatFields, CompletionFields, parse_chat, parse_completion

CHAT_FIELDS = sorted(
    get_type_hints(chat_types.CompletionCreateParamsStreaming)
    | get_type_hints(chat_types.CompletionCreateParamsNonStreaming)
)
COMPLETION_FIELDS = sorted(
    get_type_hints(completion_types.CompletionCreateParamsStreaming)
    | get_type_hints(completion_types.CompletionCreateParamsNonStreaming)
)

CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION_BODY = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize("field", CHAT_FIELDS)
def test_every_chat_field_of_the_sdk_is_in_one_table(field: str) -> None:
    assert _behaves_as_its_table(field, ChatFields.model_fields, unserved.CHAT, parse_chat, CHAT_BODY)


@pytest.mark.parametrize("field", COMPLETION_FIELDS)
def test_every_completion_field_of_the_sdk_is_in_one_table(field: str) -> None:
    assert _behaves_as_its_table(
        field, CompletionFields.model_fields, unserved.COMPLETIONS, parse_completion, COMPLETION_BODY
    )


def _behaves_as_its_table(
    field: str,
    served: Mapping[str, Any],
    refused: Mapping[str, Any],
    parse: Callable[[bytes], object],
    body: dict[str, Any],
) -> bool:
    """True when exactly one table has the field, and a request with it behaves as the table says."""
    tables = [field in served, field in refused, field in unserved.HARMLESS]
    # Only harmless fields accept an object with this key as their value.
    raw = json.dumps({**body, field: {"no such key": 1}}).encode()
    try:
        parse(raw)
    except RequestError as error:
        named = (error.refusal.param or "").split("[")[0].split(".")[0] == field
        return sum(tables) == 1 and named and not tables[2]
    return sum(tables) == 1 and tables[2]
