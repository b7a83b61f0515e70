"""The `Tokenizer` of a real model, around the `tokenizers` library.

Text in a prompt that spells a special token (`<|im_end|>`) becomes that token, in plain prompts and in chat messages
alike, as it does in `transformers`. A plain prompt needs it: that is how a caller writes a chat format by hand. In a
message it lets a user close their own turn; the tokens stay those that the model's reference implementation gives, and
whoever passes on the text of strangers filters it, as with any other server of such models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from sluiceway.errors import invalid
from sluiceway.text.chat_template import ChatTemplate
from sluiceway.text.detokenizer import Detokenizer
from sluiceway.text.encodable import require_unicode
from sluiceway.text.length_bound import LengthBound
from sluiceway.text.token_bytes import token_bytes_of
from sluiceway.types import TokenId


class SubwordTokenizer:
    """Thread-safe; the library's encoder is only read. `template` None: the model has no chat format."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[TokenId],
        template: ChatTemplate | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._token_bytes = token_bytes_of(tokenizer)
        self._length_bound = LengthBound(tokenizer, self._token_bytes.of)
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))

    @property
    def vocab_size(self) -> int:
        return len(self._token_bytes.of)

    @property
    def max_token_bytes(self) -> int:
        return self._length_bound.max_token_bytes

    def min_tokens_of(self, text: str) -> int:
        return self._length_bound.min_tokens_of(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]:
        require_unicode(text)
        # A batch of one, since only the batch call lets go of the interpreter lock: `encode` would hold it for seconds
        # on a long prompt and stop every other thread. `fast` leaves out the offsets, which nobody needs.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[TokenId] = encoding.ids
        return ids

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if self._template is None:
            raise invalid(
                "The model has no chat template; send a plain prompt to the completions endpoint.",
                "messages",
                code="no_chat_template",
            )
        return self._template.render(messages)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[TokenId]:
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(self._token_bytes, continues=continues)

    def decode(self, ids: Iterable[TokenId]) -> str:
        return self._token_bytes.decode(ids)
