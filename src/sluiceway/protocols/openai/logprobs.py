"""The logprobs of tokens as chat and completions write them. Each token is sent with the text that it is part of.

Text that may be the beginning of a stop string is held back, and so are the logprobs of its tokens. So the bytes of all
tokens that are sent, joined, are the text. The token that ended the answer is not sent, and neither are the tokens of a
stop string. A token that a stop string cuts is sent with the bytes before the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from sluiceway.types import LikelyToken, TokenLogprobs

_MANY = 32
"""The most tokens without text (special tokens, for example) that wait for the next chunk: about 40 KB of JSON."""


class PendingLogprobs:
    """Holds the logprobs of one choice until the text of their tokens is sent."""

    def __init__(self, tokens: Iterable[TokenLogprobs] = ()) -> None:
        self._held = deque(tokens)
        self._n_characters = 0

    def add(self, tokens: Iterable[TokenLogprobs]) -> None:
        """Hold these tokens until their text is sent."""
        self._held.extend(tokens)

    @property
    def is_overdue(self) -> bool:
        """True when many tokens wait although the text of the first one is sent."""
        return len(self._held) >= _MANY and self._is_sent(self._held[0])

    def take(self, text: str) -> list[TokenLogprobs]:
        """Return the tokens that are complete when `text` is sent."""
        self._n_characters += len(text)
        complete = []
        while self._held and self._is_sent(self._held[0]):
            complete.append(self._held.popleft())
        return complete

    def take_last(self, text: str) -> list[TokenLogprobs]:
        """Do as `take` with the last text. A held token is then cut, or dropped if no text of it is sent."""
        complete = self.take(text)
        for one in self._held:
            data = self._sent_part(one)
            if data:
                complete.append(replace(one, token=replace(one.token, data=data)))
        self._held.clear()
        return complete

    def _is_sent(self, one: TokenLogprobs) -> bool:
        return one.text_end is not None and one.text_end <= self._n_characters

    def _sent_part(self, one: TokenLogprobs) -> bytes:
        """The bytes of a token whose text is sent up to a stop string."""
        if one.text_end is None:
            return b""
        data = one.token.data
        # A character may have begun in an earlier token, so the first byte starts one whatever it is.
        starts = [place for place, byte in enumerate(data) if not place or not 0x80 <= byte < 0xC0]
        # Bytes of an earlier token that are no UTF-8 are a character of their own, in which this token begins.
        n_earlier = max(0, one.text_end - one.text_start - len(starts))
        n_sent = max(0, self._n_characters - one.text_start - n_earlier)
        return data[: starts[n_sent]] if n_sent < len(starts) else data


def chat_logprobs(tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """The form of chat. A special token has its name as its text, and no bytes."""
    content = [{**_likely(one.token), "top_logprobs": [_likely(token) for token in one.top]} for one in tokens]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """The older form, of completions. Of likely tokens with the same text it has only the first."""
    listed = list(tokens)
    return {
        "text_offset": [one.text_start for one in listed],
        "token_logprobs": [one.token.logprob for one in listed],
        "tokens": [one.token.shown for one in listed],
        "top_logprobs": [_by_text(one) for one in listed],
    }


def _likely(token: LikelyToken) -> dict[str, Any]:
    return {"token": token.shown, "logprob": token.logprob, "bytes": list(token.data)}


def _by_text(one: TokenLogprobs) -> dict[str, float]:
    """The likeliest tokens, and the token itself, which may or may not be one of them."""
    by_text: dict[str, float] = {}
    for token in (*one.top, one.token):
        by_text.setdefault(token.shown, token.logprob)
    return by_text
