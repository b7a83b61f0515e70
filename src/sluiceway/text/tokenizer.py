"""Text to tokens and back: what the tokenizer process needs of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sluiceway.text.detokenizer import Detokenizer
from sluiceway.types import TokenId


class Tokenizer(Protocol):
    """Encoding may run in several threads at once; a `Detokenizer` belongs to one stream."""

    @property
    def vocab_size(self) -> int:
        """Every id that this tokenizer gives is below it; the model's own vocabulary may be padded beyond."""

    @property
    def eos_token_ids(self) -> tuple[TokenId, ...]:
        """Tokens with which the model ends its answer."""

    @property
    def max_token_bytes(self) -> int:
        """UTF-8 length of the longest token, at least 1."""

    def min_tokens_of(self, text: str) -> int:
        """A lower bound of `len(encode(text))`, found without encoding: enough to refuse a hopelessly long prompt."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]:
        """Tokens of a plain prompt, with the special tokens (BOS) that the model expects around it.

        Special tokens spelled out in the text become those tokens. `RequestError` for text that is not Unicode.
        """

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation in the form the model was trained on, up to the opening of the assistant's turn.

        `RequestError` (400, param `messages`) where the model has no such form or its template refuses.
        """

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[TokenId]:
        """`encode(render_chat(messages), add_special_tokens=False)`: the template writes the special tokens itself."""

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        """A fresh decode state. `continues`: the text goes on where a plain prompt ended, so a first space counts."""

    def decode(self, ids: Iterable[TokenId]) -> str:
        """The text of all ids, special tokens left out."""
