"""The texts of requests: the same for every server, and never repeated, so that no prompt cache helps.

A text consists of random common words, which most vocabularies encode as one token each. Texts differ in their first
words, so they share no prefix.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

PROMPT_CHARACTERS = 200
PREFILL_WORDS = 1000
JOINER_WORDS = 1500

_WORDS = (
    "the old man went down to the river and saw a boat that was full of fish and bread so he took one home for all who "
    "live near by but when it was cold the house had no light and they could not see what time it was or where to go "
    "next day she came back with two men from town to ask if there is any more food left over in this part of our land "
    "we must think about how each new word may change some small thing that people know well after long years at work "
    "water stone tree road bird hand door song wind hill fire ship king story night morning winter summer green white"
).split()


def prompts(seed: int, name: str, n: int) -> list[str]:
    """Return `n` different texts of about 200 characters (about 47 tokens)."""
    return [_cut(words(f"{seed}/{name}/{index}"), PROMPT_CHARACTERS) for index in range(n)]


def long_prompt(seed: int, name: str, n_words: int) -> str:
    drawn = words(f"{seed}/{name}")
    return " ".join(next(drawn) for _ in range(n_words))


def words(seed: str) -> Iterator[str]:
    """An endless text; the same for the same seed."""
    drawing = random.Random(seed)
    while True:
        yield drawing.choice(_WORDS)


def completion(model: str, prompt: str, n_tokens: int, extras: dict[str, Any]) -> dict[str, Any]:
    """A greedy streamed completion. `extras` are fields that not every server knows."""
    fields = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "stream": True}
    return fields | extras


def _cut(drawn: Iterator[str], n_characters: int) -> str:
    text = next(drawn)
    while len(text) < n_characters:
        text += " " + next(drawn)
    return text
