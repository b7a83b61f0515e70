"""Text to tokens and back: what the tokenizer process needs of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.types import TokenId


class TemplateSource(msgspec.Struct, frozen=True):
    """A chat template as the model's files have it. Only `chat_template` compiles it: it is foreign code.

    `variables` are the special tokens by the names that templates use: `bos_token`, `eos_token`, ...
    """

    source: str
    variables: Mapping[str, str]


ChatFormat: TypeAlias = TemplateSource | Callable[[Sequence[Mapping[str, str]]], str]
"""How a chat becomes text: by the model's own template, or by a function of ours, whose cost is that of its output."""


class TooManyTokens(SluicewayError):
    """A text has more tokens than its caller can use; `n_tokens` says how many."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__(f"the text has {n_tokens} tokens")
        self.n_tokens = n_tokens


class Tokenizer(Protocol):
    """Encoding may run in several threads at once; a `Detokenizer` belongs to one stream."""

    @property
    def vocab_size(self) -> int:
        """Every id that this tokenizer gives is below it; the model's own vocabulary may be padded beyond."""

    @property
    def eos_token_ids(self) -> tuple[TokenId, ...]:
        """Tokens with which the model ends its answer."""

    @property
    def length_bound(self) -> LengthBound:
        """Says how many tokens `encode` makes of a text at least, without encoding it."""

    @property
    def chat_format(self) -> ChatFormat | None:
        """The form of conversations that the model was trained on, None if it has none.

        It writes the special tokens itself, so a rendered chat is encoded with `add_special_tokens=False`.
        """

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        """Tokens of a plain prompt, with the special tokens (BOS) that the model expects around it.

        Special tokens spelled out in the text become those tokens. `RequestError` for text that is not Unicode,
        `TooManyTokens` for more tokens than `max_tokens`: a list of millions would hold up every other thread.
        """

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        """A fresh decode state. `continues`: the text goes on where a plain prompt ended, so a first space counts."""

    def decode(self, ids: Iterable[TokenId]) -> str:
        """The text of all ids, special tokens left out."""
