"""Turns token ids into text, one at a time: never half a character, and nothing is lost at the end; pure.

Theory of operation
-------------------
Every token means some bytes (`TokenBytes`), and the text is those bytes decoded as UTF-8. The bytes of a character may
come in several tokens, so an incremental decoder keeps the bytes of an unfinished character, three at most. Bytes that
can never become a character turn into U+FFFD immediately (one for each maximal invalid part, as the Unicode standard
recommends in section 3.9), so the text of a model that emits garbage is not delayed. A character that is unfinished
when the text ends becomes one U+FFFD.

For all ids, the results of `push` and `flush` together are the text of all ids. For byte-level vocabularies this is
exactly what the `tokenizers` library decodes. For vocabularies with byte *fallback* it differs if a run of fallback
bytes is not valid UTF-8 as a whole: the library then replaces every byte of the run, even those of valid characters,
and can decide that only at the end of the run. Here, valid characters stay.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway.types import TokenId


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Maps the ids of a vocabulary to bytes; all streams share it.

    `of[i]` has the bytes of token i; they are empty for special tokens and for ids without a token. With
    `drops_first_space`, the vocabulary puts a space before the first word of a text, which is not part of the text.
    `specials` has the names of special tokens.
    """

    of: Sequence[bytes]
    drops_first_space: bool = False
    specials: Mapping[TokenId, str] = field(default_factory=dict)

    def data(self, token_id: TokenId) -> bytes:
        """Return the bytes of any id; unknown ids have none."""
        return self.of[token_id] if 0 <= token_id < len(self.of) else b""

    def shown(self, token_id: TokenId) -> str:
        """Show a token by itself: half a character as `\\xf0`, a special token by its name, an unknown id by number."""
        data = self.data(token_id)
        if data:
            return data.decode("utf-8", "backslashreplace")
        return self.specials.get(token_id, f"token_id:{token_id}")

    def decode(self, ids: Iterable[TokenId]) -> str:
        """Return the text of all ids, without special tokens."""
        detokenizer = Detokenizer(self)
        return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()


class Detokenizer:
    """Decodes the tokens of one stream. With `continues` the text continues another, so its first space is kept."""

    __slots__ = ("_bytes_of", "_drops_space", "_tail", "token_bytes")

    def __init__(self, token_bytes: TokenBytes, *, continues: bool = False) -> None:
        self.token_bytes = token_bytes
        self._bytes_of = token_bytes.of
        self._drops_space = token_bytes.drops_first_space and not continues
        self._tail = b""

    @property
    def is_inside_character(self) -> bool:
        """True if the last token ended within a character, which is not part of any text yet."""
        return bool(self._tail)

    def data(self, token_id: TokenId) -> bytes:
        """Return the bytes that this token would add to the text if it came next."""
        data = self.token_bytes.data(token_id)
        return data.removeprefix(b" ") if self._drops_space and not self._tail else data

    def push(self, token_id: TokenId) -> str:
        """Return the characters that this token completes, often none. Unknown ids are ignored."""
        if not 0 <= token_id < len(self._bytes_of):
            return ""
        data = self._bytes_of[token_id]
        if self._tail:
            data = self._tail + data
        text, n_used = codecs.utf_8_decode(data, "replace", False)
        self._tail = data[n_used:]
        return self._without_first_space(text) if self._drops_space else text

    def flush(self) -> str:
        """End the text: return U+FFFD if a character is unfinished, else nothing."""
        text, _ = codecs.utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return text

    def _without_first_space(self, text: str) -> str:
        if text:
            self._drops_space = False
        return text.removeprefix(" ")
