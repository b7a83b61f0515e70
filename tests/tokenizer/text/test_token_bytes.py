"""The bytes of tokens. The decoder of the `tokenizers` library is the reference."""

from __future__ import annotations

import random

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from sluiceway.errors import ConfigError
from sluiceway.tokenizer.text.token_bytes import (
    MAX_VOCAB_SIZE,
    byte_level_alphabet,
    component_state,
    steps_of,
    token_bytes_of,
)
from support import vocabularies

METASPACE = decoders.Metaspace(replacement="▁", prepend_scheme="always")
LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def tokenizer_with(decoder: decoders.Decoder | None, tokens: list[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


def test_byte_level_alphabet_is_the_librarys() -> None:
    """It has 256 different characters."""
    alphabet = byte_level_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert set(alphabet.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert (alphabet[0x20], alphabet[0x41], alphabet[0x0A]) == ("Ġ", "A", "Ċ")


def test_decode_equals_the_librarys_for_random_ids_of_a_byte_level_vocabulary() -> None:
    """Thousands of random sequences, most of them with invalid UTF-8, cut characters and special tokens."""
    tokenizer = vocabularies.byte_level()
    table = token_bytes_of(tokenizer)
    rng = random.Random(3)
    for _ in range(3000):
        ids = [rng.randrange(len(table.of)) for _ in range(rng.randrange(30))]
        assert table.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_decode_equals_the_librarys_for_every_pair_of_bytes() -> None:
    """Both replace invalid bytes in the same way, also at the end."""
    tokenizer = vocabularies.byte_level()
    table = token_bytes_of(tokenizer)
    vocab = tokenizer.get_vocab()
    ids = {byte: vocab[char] for byte, char in byte_level_alphabet().items()}
    for first in range(0x80, 0x100):
        for second in range(256):
            pair = [ids[first], ids[second]]
            assert table.decode(pair) == tokenizer.decode(pair), (first, second)


def test_added_tokens_are_shown_as_they_are_spelled_unless_special() -> None:
    """Text with a space is not a byte-level token. `ï` would mean a byte, but in an added token it means itself."""
    tokenizer = tokenizers.Tokenizer.from_str(vocabularies.byte_level().to_str())
    tokenizer.add_tokens([AddedToken("two words", special=False), AddedToken("日本", special=False)])
    tokenizer.add_special_tokens([AddedToken("<hidden>", special=True)])
    table = token_bytes_of(tokenizer)
    ids = [tokenizer.get_vocab()[token] for token in ("two words", "日本", "<hidden>")]
    assert table.decode(ids) == "two words日本" == tokenizer.decode(ids, skip_special_tokens=True)
    assert [table.shown(token_id) for token_id in ids] == ["two words", "日本", "<hidden>"]


def test_ids_without_a_token_have_no_bytes() -> None:
    """Vocabularies may have unused ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 5}, []))
    tokenizer.decoder = decoders.ByteLevel()
    assert list(token_bytes_of(tokenizer).of) == [b"a", b"", b"", b"", b"", b"b"]


def test_sentencepiece_tokens_give_spaces_and_bytes() -> None:
    """Marks become spaces, byte tokens become bytes, and the first space is not text."""
    tokenizer = tokenizer_with(LLAMA, ["▁a", "b", "<0xC3>", "<0xA9>", "▁▁", "<0xc3>", "<0xzz>"])
    table = token_bytes_of(tokenizer)
    assert list(table.of) == [b" a", b"b", b"\xc3", b"\xa9", b"  ", b"\xc3", b"<0xzz>"]
    assert table.drops_first_space
    for ids in ([0, 1, 0], [2, 3], [4, 0], [1, 4], [5, 3, 0], [6, 1]):
        assert table.decode(ids) == tokenizer.decode(ids)


def test_valid_characters_stay_when_a_run_of_fallback_bytes_holds_an_invalid_one() -> None:
    """The library replaces the whole run. This decoder cannot wait for the end of a run, so it replaces less."""
    tokenizer = tokenizer_with(LLAMA, ["a", "<0xC3>", "<0xA9>", "<0xFF>"])
    assert tokenizer.decode([0, 1, 2, 3]) == "a\ufffd\ufffd\ufffd"
    assert token_bytes_of(tokenizer).decode([0, 1, 2, 3]) == "aé\ufffd"


def test_metaspace_tokens_give_spaces_but_no_bytes() -> None:
    """Without byte fallback, `<0x41>` is plain text."""
    tokenizer = tokenizer_with(METASPACE, ["▁a", "<0x41>"])
    assert token_bytes_of(tokenizer).decode([0, 1, 0]) == "a<0x41> a" == tokenizer.decode([0, 1, 0])
    kept = tokenizer_with(decoders.Metaspace(replacement="▁", prepend_scheme="never"), ["▁a"])
    assert token_bytes_of(kept).decode([0, 0]) == " a a" == kept.decode([0, 0])


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), "ByteFallback"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.BPEDecoder()]), "BPEDecoder"),
        (decoders.Metaspace(replacement="_"), "Metaspace"),
        (None, "missing"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: decoders.Decoder | None, name: str) -> None:
    """Their vocabularies would be decoded wrongly."""
    with pytest.raises(ConfigError, match=name):
        token_bytes_of(tokenizer_with(decoder, ["a"]))


def test_steps_of_nested_sequences_are_found() -> None:
    nested = decoders.Sequence([decoders.Sequence([decoders.Fuse()]), decoders.ByteFallback()])
    assert [step["type"] for step in steps_of(component_state(nested))] == ["Fuse", "ByteFallback"]
    assert list(steps_of(component_state(None))) == []


def test_an_id_far_beyond_the_vocabulary_is_refused() -> None:
    """The table has an entry for each id up to the highest, so one token could cost gigabytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0, "b": MAX_VOCAB_SIZE}, []))
    tokenizer.decoder = decoders.ByteLevel()
    with pytest.raises(ConfigError, match=f"token id {MAX_VOCAB_SIZE}"):
        token_bytes_of(tokenizer)
