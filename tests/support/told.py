"""Tokens that are told with their log-probabilities, for tests of those who pass them on."""

from __future__ import annotations

from sluiceway.types import LikelyToken, TokenLogprobs


def likely(data: bytes, logprob: float = -0.5, token_id: int = 7) -> LikelyToken:
    return LikelyToken(token_id, data.decode("utf-8", "backslashreplace"), data, logprob)


def told(data: bytes, start: int, end: int | None, *top: LikelyToken, logprob: float = -0.5) -> TokenLogprobs:
    """Its text lies from `start` to `end`, in characters."""
    return TokenLogprobs(likely(data, logprob), top, start, end)


def told_text(text: str) -> tuple[TokenLogprobs, ...]:
    """A token for each character."""
    return tuple(told(character.encode(), place, place + 1) for place, character in enumerate(text))
