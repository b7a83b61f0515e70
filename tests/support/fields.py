"""Fields of the OpenAI protocol, checked as the server checks them, for tests that look at the result or the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.openai.requests import ChatFields, CompletionFields

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "x"}


def chat(**fields: Any) -> ChatFields:
    return check(ChatFields, {**CHAT, **fields})


def completion(**fields: Any) -> CompletionFields:
    return check(CompletionFields, {**COMPLETION, **fields})


def refusal_of(call: Any, **fields: Any) -> Refusal:
    """The refusal that `call` raises for these fields; it must be a 400."""
    with pytest.raises(RequestError) as caught:
        call(**fields)
    assert caught.value.refusal.status == 400
    return caught.value.refusal


def request_or_refusal(parse: Callable[..., GenerationRequest], **fields: Any) -> GenerationRequest | None:
    """The request that `parse` makes of these fields; None if it refuses them, with a message of a bounded length."""
    try:
        return parse(**fields)
    except RequestError as error:
        assert error.refusal.status == 400
        assert 0 < len(error.refusal.message) < 600
        return None
