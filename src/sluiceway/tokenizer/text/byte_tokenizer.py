"""A tokenizer without a model, with one token for each UTF-8 byte: for the fake runner, for tests, for the lab."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.text.detokenizer import Detokenizer, TokenBytes
from sluiceway.tokenizer.text.encodable import require_unicode
from sluiceway.tokenizer.text.tokenizer import TooManyTokens
from sluiceway.types import TokenId

EOS_ID = 256
BOS_ID = 257

_TOKEN_BYTES = TokenBytes(
    [bytes([byte]) for byte in range(256)] + [b"", b""], specials={EOS_ID: "<eos>", BOS_ID: "<bos>"}
)


class ByteTokenizer:
    """Encodes text as its bytes: ids 0 to 255, then EOS and BOS. A plain prompt begins with BOS, a chat does not."""

    vocab_size = 258
    eos_token_ids: tuple[TokenId, ...] = (EOS_ID,)
    length_bound = LengthBound(max_token_bytes=1, bytes_a_token=1, n_special=1)

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        data = require_unicode(text)
        n_tokens = len(data) + add_special_tokens
        if max_tokens is not None and n_tokens > max_tokens:
            raise TooManyTokens(n_tokens)
        return [BOS_ID, *data] if add_special_tokens else list(data)

    def chat_format(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Write one line for each message, `role: content`, and the beginning of the assistant's line."""
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(_TOKEN_BYTES, continues=continues)

    def decode(self, ids: Iterable[TokenId]) -> str:
        return _TOKEN_BYTES.decode(ids)
