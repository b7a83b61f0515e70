"""A tokenizer without a model: one token per UTF-8 byte. For the fake runner, for tests, for the lab."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluiceway.errors import invalid
from sluiceway.text.detokenizer import Detokenizer, TokenBytes
from sluiceway.text.encodable import require_unicode
from sluiceway.types import TokenId

EOS_ID = 256
BOS_ID = 257

_TOKEN_BYTES = TokenBytes(
    [bytes([byte]) for byte in range(256)] + [b"", b""], specials={EOS_ID: "<eos>", BOS_ID: "<bos>"}
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then EOS and BOS. A plain prompt is BOS and its bytes; a chat is its bytes alone."""

    vocab_size = 258
    eos_token_ids: tuple[TokenId, ...] = (EOS_ID,)
    max_token_bytes = 1

    def min_tokens_of(self, text: str) -> int:
        return 1 + len(text.encode("utf-8", "surrogatepass"))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[TokenId]:
        data = require_unicode(text)
        return [BOS_ID, *data] if add_special_tokens else list(data)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """One line a message, `role: content`, and the opening of the assistant's line."""
        if not messages:
            raise invalid("A chat needs at least one message.", "messages")
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[TokenId]:
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(_TOKEN_BYTES, continues=continues)

    def decode(self, ids: Iterable[TokenId]) -> str:
        return _TOKEN_BYTES.decode(ids)
