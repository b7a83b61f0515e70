"""Token ids to text, one at a time: never half a character, nothing lost at the end; pure.

Theory of operation
-------------------
Every token stands for some bytes (`TokenBytes`), and the text is those bytes decoded as UTF-8. A character may be
spread over several tokens, so the bytes go through an incremental decoder that keeps at most the three bytes of an
unfinished character. Bytes that can never become a character turn into U+FFFD at once (one for each maximal invalid
part, as the Unicode standard recommends in section 3.9), so a model that emits garbage is never held back. A character
that is unfinished when the text ends becomes one U+FFFD.

For all ids, the pushes and the flush joined are the text of all ids. For byte-level vocabularies that is exactly what
the `tokenizers` library decodes. For vocabularies with byte *fallback* it differs where a run of fallback bytes is not
valid UTF-8 as a whole: the library then replaces every byte of the run, valid characters too, and can only know at the
end of the run; here valid characters stay.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway.types import TokenId


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What the ids of a vocabulary stand for; one for all streams.

    `of[i]` are the bytes of token i, empty for special tokens and for ids without a token. `drops_first_space`: the
    vocabulary writes a space before the first word of a text, which is not part of the text. `specials` are the names
    of special tokens.
    """

    of: Sequence[bytes]
    drops_first_space: bool = False
    specials: Mapping[TokenId, str] = field(default_factory=dict)

    def data(self, token_id: TokenId) -> bytes:
        """The bytes of any id; unknown ones stand for nothing."""
        return self.of[token_id] if 0 <= token_id < len(self.of) else b""

    def shown(self, token_id: TokenId) -> str:
        """A token by itself: half a character as `\\xf0`, special ones by name, unknown ids by number."""
        data = self.data(token_id)
        if data:
            return data.decode("utf-8", "backslashreplace")
        return self.specials.get(token_id, f"token_id:{token_id}")

    def decode(self, ids: Iterable[TokenId]) -> str:
        """The text of all ids, special tokens left out."""
        detokenizer = Detokenizer(self)
        return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()


class Detokenizer:
    """The decode state of one stream. `continues`: a text goes on here, so its first space belongs to it."""

    __slots__ = ("_bytes_of", "_drops_space", "_tail", "token_bytes")

    def __init__(self, token_bytes: TokenBytes, *, continues: bool = False) -> None:
        self.token_bytes = token_bytes
        self._bytes_of = token_bytes.of
        self._drops_space = token_bytes.drops_first_space and not continues
        self._tail = b""

    @property
    def is_inside_character(self) -> bool:
        """Whether the last token ended within a character, which is in no text so far."""
        return bool(self._tail)

    def data(self, token_id: TokenId) -> bytes:
        """What this token would add to the text, as bytes, if it came next."""
        data = self.token_bytes.data(token_id)
        return data.removeprefix(b" ") if self._drops_space and not self._tail else data

    def push(self, token_id: TokenId) -> str:
        """The characters that this token completes, often none. Any id is fine: unknown ones stand for nothing."""
        if not 0 <= token_id < len(self._bytes_of):
            return ""
        data = self._bytes_of[token_id]
        if self._tail:
            data = self._tail + data
        text, n_used = codecs.utf_8_decode(data, "replace", False)
        self._tail = data[n_used:]
        return self._without_first_space(text) if self._drops_space else text

    def flush(self) -> str:
        """The end of the text: U+FFFD if a character is unfinished, else nothing."""
        text, _ = codecs.utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return text

    def _without_first_space(self, text: str) -> str:
        if text:
            self._drops_space = False
        return text.removeprefix(" ")
