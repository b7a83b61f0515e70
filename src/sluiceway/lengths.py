"""Bounds the tokens of a text from below by its length alone, to refuse prompts that are far too long."""

from __future__ import annotations

import msgspec

_PIECE_CHARS = 64 * 1024
"""A long text is counted in pieces of this size, so that other threads can run between two pieces."""


class LengthBound(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds how few tokens a tokenizer makes of a text. With the defaults the bound is 0: no text is too long."""

    max_token_bytes: int = 1
    """UTF-8 length of the longest token, at least 1."""
    bytes_a_token: int | None = None
    """The longest text, in UTF-8, that one token can stand for; None if no such limit is known."""
    lost_bytes: bytes = b""
    """Bytes that become no token at all."""
    n_special: int = 0
    """Tokens that every text gets."""

    def min_tokens_of(self, text: str) -> int:
        """A lower bound of the tokens of a text; 0 where nothing can be said."""
        if self.bytes_a_token is None:
            return 0
        n_bytes = 0
        for place in range(0, len(text), _PIECE_CHARS):
            piece = text[place : place + _PIECE_CHARS].encode("utf-8", "surrogatepass")
            n_bytes += len(piece.translate(None, self.lost_bytes))
        return self.n_special - (-n_bytes // self.bytes_a_token)
