"""The lower bound on the number of tokens: it must hold for every text, and be absent if it is unknown."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.text.length_bound import length_bound_of
from sluiceway.tokenizer.text.token_bytes import token_bytes_of
from support import vocabularies


def byte_level() -> tokenizers.Tokenizer:
    """Return a copy that a test may change."""
    return tokenizers.Tokenizer.from_str(vocabularies.byte_level().to_str())


def bound_of(tokenizer: tokenizers.Tokenizer) -> LengthBound:
    return length_bound_of(tokenizer, token_bytes_of(tokenizer).of)


def test_bound_is_bytes_by_the_longest_token_for_a_byte_level_vocabulary() -> None:
    """It is rounded up and counted in UTF-8. An empty text may have no token."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("x" * 100, special=False)])
    bound = bound_of(tokenizer)
    assert bound.max_token_bytes == 100
    assert [bound.min_tokens_of(text) for text in ("", "a", "a" * 100, "a" * 101, "é" * 51)] == [0, 1, 1, 2, 2]
    assert len(tokenizer.encode("x" * 200).ids) == 2


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="a e\u0301\u1112\u1161\u11ab漢\ud7a3\n", max_size=60))
def test_bound_holds_when_the_normaliser_shortens_the_text(text: str) -> None:
    """NFC composes letters: three Hangul parts (nine bytes) become one syllable (three bytes)."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "_")])
    bound = bound_of(tokenizer)
    assert bound.min_tokens_of(text) <= len(tokenizer.encode(text).ids)
    assert bound.min_tokens_of("x" * 1000 * bound.max_token_bytes) > 0


def test_bytes_that_the_vocabulary_lacks_do_not_count() -> None:
    """The encoder of an incomplete vocabulary leaves bytes out."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    assert tokenizer.encode("\x04" * 50 + "aa").ids == [0, 0]
    assert bound_of(tokenizer).min_tokens_of("\x04" * 50 + "aa") == 2


def test_space_marks_in_the_text_count_by_their_own_length() -> None:
    """A token of spaces has three times as many bytes if the text contains the marks."""
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, [("▁", "▁")], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bound = bound_of(tokenizer)
    assert bound.max_token_bytes == 6
    assert bound.min_tokens_of("▁" * 10) == 5 == len(tokenizer.encode("▁" * 10).ids)


def without_bytes(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.model = models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)


def with_incomplete_fallback(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.model = models.BPE({"a": 0, "<0x41>": 1, "<unk>": 2}, [], unk_token="<unk>", byte_fallback=True)


def with_another_model(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.model = models.Unigram([("a", 0.0)], 0, False)


def with_swallowed_spaces(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])


def with_removed_spaces(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def with_whitespace_split(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def with_stripping(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Strip()


def with_shortening_replacement(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace("aaa", "a")


@pytest.mark.parametrize(
    "change",
    [
        without_bytes,
        with_incomplete_fallback,
        with_another_model,
        with_swallowed_spaces,
        with_removed_spaces,
        with_whitespace_split,
        with_stripping,
        with_shortening_replacement,
    ],
)
def test_bound_is_zero_when_text_can_vanish_without_limit(change: object) -> None:
    """Unknown tokens may fuse, spaces may be dropped, and normalisers may shorten the text without limit."""
    tokenizer = byte_level()
    assert callable(change)
    change(tokenizer)
    assert bound_of(tokenizer).min_tokens_of("a" * 10_000) == 0
