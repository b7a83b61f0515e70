"""The lower bound on the tokens of a text. `tests/tokenizer/text` tests that it holds for each tokenizer."""

from __future__ import annotations

import msgspec
import pytest

from sluiceway.lengths import LengthBound


@pytest.mark.parametrize(
    ("text", "n_tokens"),
    [("", 1), ("a", 2), ("abcd", 2), ("abcde", 3), ("é" * 2, 2), ("é" * 3, 3), ("\ud800", 2), ("😀x", 3), ("  a", 2)],
)
def test_bound_is_the_counted_bytes_divided_by_the_longest_token(text: str, n_tokens: int) -> None:
    """Rounded up. Bytes that the vocabulary lacks do not count; half a surrogate pair does."""
    bound = LengthBound(max_token_bytes=2, bytes_a_token=4, lost_bytes=b" ", n_special=1)
    assert bound.min_tokens_of(text) == n_tokens


@pytest.mark.parametrize("n_chars", [65_535, 65_536, 65_537, 1_000_000])
def test_a_long_text_is_counted_whole(n_chars: int) -> None:
    """In several pieces."""
    assert LengthBound(bytes_a_token=4).min_tokens_of("😀" * n_chars) == n_chars


def test_bound_is_zero_when_it_is_unknown() -> None:
    """Also after it was sent through a pipe."""
    unknown = msgspec.msgpack.decode(msgspec.msgpack.encode(LengthBound()), type=LengthBound)
    assert unknown == LengthBound() and unknown.min_tokens_of("x" * 100) == 0
