"""Log-probabilities of tokens as both endpoints tell them, each token with the text that it is part of.

Text is held back where it may prove to be something else, and so are its tokens: all that are told are in the text, and
their bytes, joined, are the text. The token that ended the answer and those of a stop string are not told; one that a
stop string has cut is told with the bytes before the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from sluiceway.types import LikelyToken, ToldToken

_MANY = 32
"""Tokens without text (special ones, say) that wait for the next chunk at most: with their likeliest some 40 KB."""


class ToldText:
    """The tokens of one choice, each until its text is out."""

    def __init__(self, told: Iterable[ToldToken] = ()) -> None:
        self._held = deque(told)
        self._n_characters = 0

    def add(self, told: Iterable[ToldToken]) -> None:
        """Their text is still to come."""
        self._held.extend(told)

    @property
    def is_overdue(self) -> bool:
        """Whether many wait, and the first of them not for text."""
        return len(self._held) >= _MANY and self._is_out(self._held[0])

    def take(self, text: str) -> list[ToldToken]:
        """This text goes out: the tokens that are out with it."""
        self._n_characters += len(text)
        out = []
        while self._held and self._is_out(self._held[0]):
            out.append(self._held.popleft())
        return out

    def _is_out(self, told: ToldToken) -> bool:
        return told.text_end is not None and told.text_end <= self._n_characters

    def take_last(self, text: str) -> list[ToldToken]:
        """As `take`, where no text follows: what is left is no part of the text, or it is cut."""
        out = self.take(text)
        for told in self._held:
            n_kept = self._n_characters - told.text_start
            if told.text_end is not None and n_kept > 0:
                token = told.token
                out.append(replace(told, token=replace(token, data=_first_characters(token.data, n_kept))))
        self._held.clear()
        return out


def chat_logprobs(told: Iterable[ToldToken]) -> dict[str, Any]:
    """A token that is no text has no bytes, and its name."""
    content = [{**_likely(one.token), "top_logprobs": [_likely(token) for token in one.top]} for one in told]
    return {"content": content, "refusal": None}


def completion_logprobs(told: Iterable[ToldToken]) -> dict[str, Any]:
    """The older form. The likeliest are an object: of tokens that look the same it has the likeliest one."""
    tokens = list(told)
    return {
        "text_offset": [one.text_start for one in tokens],
        "token_logprobs": [one.token.logprob for one in tokens],
        "tokens": [one.token.shown for one in tokens],
        "top_logprobs": [_by_look(one) for one in tokens],
    }


def _likely(token: LikelyToken) -> dict[str, Any]:
    return {"token": token.shown, "logprob": token.logprob, "bytes": list(token.data)}


def _by_look(told: ToldToken) -> dict[str, float]:
    """The likeliest, and the token itself, whether or not it is one of them."""
    by_look: dict[str, float] = {}
    for token in (*told.top, told.token):
        by_look.setdefault(token.shown, token.logprob)
    return by_look


def _first_characters(data: bytes, n: int) -> bytes:
    """What completes so many characters; the first of them may have begun in an earlier token."""
    starts = [place for place, byte in enumerate(data) if not place or not 0x80 <= byte < 0xC0]
    return data[: starts[n]] if n < len(starts) else data
