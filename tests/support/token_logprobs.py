"""Makes tokens with logprobs, for tests of the code that sends them to clients."""

from __future__ import annotations

from sluiceway.types import LikelyToken, TokenLogprobs


def likely(data: bytes, logprob: float = -0.5, token_id: int = 7) -> LikelyToken:
    return LikelyToken(token_id, data.decode("utf-8", "backslashreplace"), data, logprob)


def logprobs_of(data: bytes, start: int, end: int | None, *top: LikelyToken, logprob: float = -0.5) -> TokenLogprobs:
    """The logprobs of one token. Its text goes from character `start` to `end`; None if it ended the answer."""
    return TokenLogprobs(likely(data, logprob), top, start, end)


def logprobs_of_characters(text: str) -> tuple[TokenLogprobs, ...]:
    """The logprobs of a text that has one token for each character."""
    return tuple(logprobs_of(character.encode(), place, place + 1) for place, character in enumerate(text))
