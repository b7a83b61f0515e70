"""The adapter around the `tokenizers` library, beyond what every tokenizer keeps."""

from __future__ import annotations

import pytest
import tokenizers

from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.tokenizer.text.subword_tokenizer import SubwordTokenizer, library_errors
from sluiceway.tokenizer.text.tokenizer import TooManyTokens
from support import vocabularies


def subword() -> SubwordTokenizer:
    return SubwordTokenizer(vocabularies.byte_level(), eos_token_ids=[1, 2, 1], chat_format=None)


def test_end_tokens_are_each_named_once() -> None:
    """In the order given."""
    assert subword().eos_token_ids == (1, 2)


def test_a_special_token_spelled_in_a_text_is_that_token() -> None:
    """As the reference library does it; the module's docstring says what that means."""
    assert subword().encode("a<|im_end|>")[-1] == 2


def test_detokenizers_share_nothing() -> None:
    """Two streams, each in the middle of its own character."""
    tokenizer = subword()
    one, other = tokenizer.detokenizer(), tokenizer.detokenizer(continues=True)
    first, second = tokenizer.encode("ñ"), tokenizer.encode("ÿ")
    assert len(first) == len(second) == 2
    texts = [one.push(first[0]), other.push(second[0]), one.push(first[1]), other.push(second[1])]
    assert texts == ["", "", "ñ", "ÿ"]
    assert tokenizer.decode([*first, 2, *second]) == "ñÿ"


def test_sizes_are_the_vocabularys() -> None:
    """Ids end where the table ends; the longest token bounds the length."""
    tokenizer = subword()
    assert tokenizer.vocab_size == vocabularies.byte_level().get_vocab_size(with_added_tokens=True)
    assert tokenizer.length_bound.max_token_bytes == len("<|im_end|>")
    assert tokenizer.length_bound.min_tokens_of("x" * 101) == 11


def test_a_vocabulary_that_cannot_be_decoded_is_refused() -> None:
    """At load, not at the first answer."""
    with pytest.raises(ConfigError, match="tokenizer.decoder"):
        SubwordTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), eos_token_ids=[], chat_format=None)


class Panic(BaseException):
    """What the library raises when its Rust code panics is no `Exception`."""


@pytest.mark.parametrize("error", [ValueError("two\nlines"), Panic("two\nlines")])
def test_an_error_of_the_library_is_a_source_error(error: BaseException) -> None:
    """In one line."""
    with pytest.raises(ModelSourceError, match="m.json is damaged: two lines"):
        with library_errors("m.json is damaged"):
            raise error


@pytest.mark.parametrize("error", [ConfigError("x", "y"), KeyboardInterrupt()])
def test_an_error_that_is_not_the_librarys_passes(error: BaseException) -> None:
    """Ours says more, and an interrupt is none."""
    with pytest.raises(type(error)) as caught, library_errors("m.json is damaged"):
        raise error
    assert caught.value is error


def test_no_list_is_made_of_more_tokens_than_the_caller_can_use() -> None:
    """The error says how many they are."""
    with pytest.raises(TooManyTokens) as caught:
        subword().encode("12345", max_tokens=4)
    assert caught.value.n_tokens == 5
