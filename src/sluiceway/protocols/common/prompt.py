"""The `prompt` of a completion request, in its four forms: a text, texts, token ids, lists of token ids."""

from __future__ import annotations

from sluiceway.errors import invalid
from sluiceway.ipc.messages.to_tokenizer import Prompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.values import lower_each, require_filled_text, require_list, require_token_ids, wrong
from sluiceway.ranges import CHOICES

MAX_CHOICES = int(CHOICES.high)
"""Prompts times `n`: every choice is a sequence of its own, so this bounds what one request may start."""

_FORMS = "a string, a list of strings, a list of token ids or a list of such lists"


def lower_prompt(value: object) -> tuple[Prompt, ...]:
    """The prompts in order, at least one, none empty, at most `MAX_CHOICES`."""
    if isinstance(value, str):
        return (TextPrompt(require_filled_text(value, "prompt")),)
    items = require_list(value, "prompt", expected=_FORMS)
    if not items:
        raise invalid("`prompt` must not be an empty list.", "prompt")
    if type(items[0]) is int:
        return (TokenPrompt(require_token_ids(items, "prompt")),)
    if not isinstance(items[0], str | list):
        raise wrong(items[0], "prompt[0]", "a string, a token id or a list of token ids")
    require_list(items, "prompt", expected=_FORMS, max_items=MAX_CHOICES)
    lower = _lower_text if isinstance(items[0], str) else _lower_ids
    return lower_each(lambda one: lower(one[1], f"prompt[{one[0]}]"), enumerate(items))


def _lower_text(value: object, path: str) -> Prompt:
    return TextPrompt(require_filled_text(value, path))


def _lower_ids(value: object, path: str) -> Prompt:
    ids = require_list(value, path, expected="a list of token ids, as the first prompt is")
    if not ids:
        raise invalid(f"`{path}` must not be an empty list.", path)
    return TokenPrompt(require_token_ids(ids, path))
