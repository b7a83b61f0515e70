"""Renders and encodes chats in this process, for templates that a test trusts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from sluiceway.tokenizer.text.chat_template import ChatTemplate
from sluiceway.tokenizer.text.tokenizer import TemplateSource, Tokenizer
from sluiceway.types import TokenId


@functools.cache
def _compiled(source: str, variables: frozenset[tuple[str, str]]) -> ChatTemplate:
    return ChatTemplate(TemplateSource(source, dict(variables)))


def render_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> str:
    chat_format = tokenizer.chat_format
    assert chat_format is not None
    if isinstance(chat_format, TemplateSource):
        return _compiled(chat_format.source, frozenset(chat_format.variables.items())).render(messages)
    return chat_format(messages)


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[TokenId]:
    return tokenizer.encode(render_chat(tokenizer, messages), add_special_tokens=False)
