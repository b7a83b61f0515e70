"""The interface of a model's tokenizer, as the tokenizer process uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.types import TokenId


class TemplateSource(msgspec.Struct, frozen=True):
    """A chat template as the model's files have it. It is foreign code, so only `chat_template` compiles it.

    `variables` has the special tokens by the names that templates use: `bos_token`, `eos_token`, ...
    """

    source: str
    variables: Mapping[str, str]


ChatFormat: TypeAlias = TemplateSource | Callable[[Sequence[Mapping[str, str]]], str]
"""How a chat becomes text: by the model's own template, or by a function of this project, which needs no limits."""


class TooManyTokens(SluicewayError):
    """A text has more tokens than the caller allows: `n_tokens`."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__(f"the text has {n_tokens} tokens")
        self.n_tokens = n_tokens


class Tokenizer(Protocol):
    """Encodes text as tokens and decodes tokens to text.

    Several threads may encode at the same time. A `Detokenizer` belongs to one stream.
    """

    @property
    def vocab_size(self) -> int:
        """Greater than every id of this tokenizer. The model's own vocabulary may be padded and larger."""

    @property
    def eos_token_ids(self) -> tuple[TokenId, ...]:
        """The tokens that end an answer."""

    @property
    def length_bound(self) -> LengthBound:
        """Tells the least number of tokens that a text can have, without encoding it."""

    @property
    def chat_format(self) -> ChatFormat | None:
        """How the model was trained to read chats; None if it was not.

        It writes the special tokens itself, so a rendered chat is encoded with `add_special_tokens=False`.
        """

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        """Encode a text, by default with the special tokens (BOS) that the model expects around a plain prompt.

        A special token that is spelled out in the text becomes that token. Raises `RequestError` for text that is not
        Unicode, and `TooManyTokens` for more tokens than `max_tokens`, because making a list of millions would block
        every other thread.
        """

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        """Make a `Detokenizer`. With `continues`, the text continues a plain prompt, so its first space counts."""

    def decode(self, ids: Iterable[TokenId]) -> str:
        """Decode all ids, without special tokens."""
