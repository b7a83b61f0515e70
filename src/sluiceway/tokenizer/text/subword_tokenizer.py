"""The `Tokenizer` of a real model, which uses the `tokenizers` library.

Text in a prompt that spells a special token (`<|im_end|>`) becomes that token, in plain prompts and in chat messages,
as in `transformers`. Plain prompts need this, because callers write chat formats by hand. In a chat message it lets a
user end their own turn. The tokens are those of the model's reference implementation all the same: an application that
passes on text of strangers must filter it, as with other servers of such models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import tokenizers

from sluiceway.errors import ModelSourceError, SluicewayError
from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.tokenizer.text.encodable import require_unicode
from sluiceway.tokenizer.text.length_bound import length_bound_of
from sluiceway.tokenizer.text.token_bytes import token_bytes_of
from sluiceway.tokenizer.text.tokenizer import TemplateSource, TooManyTokens
from sluiceway.types import TokenId

_PROBE = "The 1st é, 漢字!\n"
"""Encoded once at load, so that a broken table is found then and not by the first request."""


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Raise `ModelSourceError`, with `what` in its message, for anything that the library raises.

    The library has no precise exceptions, and a panic of its Rust code is not even an `Exception`.
    """
    try:
        yield
    except (SluicewayError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        words = " ".join(str(error).split())
        raise ModelSourceError(f"{what}: {words}") from error


class SubwordTokenizer:
    """Encodes and decodes with the vocabulary of a model. Thread-safe.

    `chat_format` is None if the model has no chat template.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[TokenId],
        chat_format: TemplateSource | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes_of(tokenizer)
        self.length_bound = length_bound_of(tokenizer, self._token_bytes.of)
        self.chat_format = chat_format
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.encode(_PROBE)

    @property
    def vocab_size(self) -> int:
        return len(self._token_bytes.of)

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        require_unicode(text)
        # A batch of one, because only the batch call releases the interpreter lock: on a long prompt, `encode` would
        # hold it for seconds and block every other thread. `fast` omits the offsets, which are not needed.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if max_tokens is not None and len(encoding) > max_tokens:
            raise TooManyTokens(len(encoding))
        ids: list[TokenId] = encoding.ids
        return ids

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(self._token_bytes, continues=continues)

    def decode(self, ids: Iterable[TokenId]) -> str:
        return self._token_bytes.decode(ids)
