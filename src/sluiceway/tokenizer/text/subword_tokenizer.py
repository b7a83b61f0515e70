"""The `Tokenizer` of a real model, around the `tokenizers` library.

Text in a prompt that spells a special token (`<|im_end|>`) becomes that token, in plain prompts and in chat messages
alike, as it does in `transformers`. A plain prompt needs it: that is how a caller writes a chat format by hand. In a
message it lets a user close their own turn; the tokens stay those that the model's reference implementation gives, and
whoever passes on the text of strangers filters it, as with any other server of such models.
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
"""Encoded once at load: a table that is broken shows itself there, not at the first request."""


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Raises `ModelSourceError`, which says `what` is wrong, for whatever the library raises inside.

    It raises nothing precise, and where its Rust code panics, what it raises is no `Exception`.
    """
    try:
        yield
    except (SluicewayError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        words = " ".join(str(error).split())
        raise ModelSourceError(f"{what}: {words}") from error


class SubwordTokenizer:
    """Thread-safe; the library's encoder is only read. `chat_format` None: the model has no chat template."""

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
        # A batch of one, since only the batch call lets go of the interpreter lock: `encode` would hold it for seconds
        # on a long prompt and stop every other thread. `fast` leaves out the offsets, which nobody needs.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if max_tokens is not None and len(encoding) > max_tokens:
            raise TooManyTokens(len(encoding))
        ids: list[TokenId] = encoding.ids
        return ids

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(self._token_bytes, continues=continues)

    def decode(self, ids: Iterable[TokenId]) -> str:
        return self._token_bytes.decode(ids)
