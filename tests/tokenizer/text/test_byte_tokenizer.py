"""The tokenizer of the fake model, beyond what `test_tokenizer` tests for all."""

from __future__ import annotations

import pytest

from sluiceway.tokenizer.text.byte_tokenizer import BOS_ID, EOS_ID, ByteTokenizer
from sluiceway.tokenizer.text.tokenizer import TooManyTokens


def test_encode_gives_bos_and_one_token_for_each_byte() -> None:
    """BOS is left out if the caller writes the special tokens itself."""
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé") == [BOS_ID, 97, 0xC3, 0xA9]
    assert tokenizer.encode("aé", add_special_tokens=False) == [97, 0xC3, 0xA9]
    assert tokenizer.length_bound.min_tokens_of("aé") == 4


def test_a_rendered_chat_is_readable() -> None:
    """It has one line for each message, then the beginning of the assistant's."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert ByteTokenizer().chat_format(messages) == "system: Be brief.\nuser: Hi\nassistant: "


def test_encode_counts_before_it_makes_a_list() -> None:
    """BOS counts if it is wanted."""
    tokenizer = ByteTokenizer()
    assert len(tokenizer.encode("abc", max_tokens=4)) == 4
    assert len(tokenizer.encode("abc", add_special_tokens=False, max_tokens=3)) == 3
    with pytest.raises(TooManyTokens) as caught:
        tokenizer.encode("abc", max_tokens=3)
    assert caught.value.n_tokens == 4


def test_decode_leaves_special_and_unknown_ids_out() -> None:
    """A `Detokenizer` gives the same text."""
    tokenizer = ByteTokenizer()
    ids = [BOS_ID, *b"ok", 9999, EOS_ID]
    assert tokenizer.decode(ids) == "ok"
    detokenizer = tokenizer.detokenizer(continues=True)
    assert "".join(map(detokenizer.push, ids)) == "ok"
