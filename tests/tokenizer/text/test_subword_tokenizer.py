"""The adapter of the `tokenizers` library, beyond what `test_tokenizer` tests for all."""

from __future__ import annotations

import pytest
import tokenizers

from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.tokenizer.text.subword_tokenizer import SubwordTokenizer, library_errors
from sluiceway.tokenizer.text.tokenizer import TooManyTokens
from support import vocabularies


def subword() -> SubwordTokenizer:
    return SubwordTokenizer(vocabularies.byte_level(), eos_token_ids=[1, 2, 1], chat_format=None)


def test_end_tokens_have_no_repetition() -> None:
    """They keep their order."""
    assert subword().eos_token_ids == (1, 2)


def test_a_special_token_spelled_in_a_text_is_that_token() -> None:
    """The docstring of the module says what this means."""
    assert subword().encode("a<|im_end|>")[-1] == 2


def test_detokenizers_are_independent() -> None:
    """Each is in the middle of another character."""
    tokenizer = subword()
    one, other = tokenizer.detokenizer(), tokenizer.detokenizer(continues=True)
    first, second = tokenizer.encode("ñ"), tokenizer.encode("ÿ")
    assert len(first) == len(second) == 2
    texts = [one.push(first[0]), other.push(second[0]), one.push(first[1]), other.push(second[1])]
    assert texts == ["", "", "ñ", "ÿ"]
    assert tokenizer.decode([*first, 2, *second]) == "ñÿ"


def test_sizes_come_from_the_vocabulary() -> None:
    """The table has the ids, and the longest token gives the length bound."""
    tokenizer = subword()
    assert tokenizer.vocab_size == vocabularies.byte_level().get_vocab_size(with_added_tokens=True)
    assert tokenizer.length_bound.max_token_bytes == len("<|im_end|>")
    assert tokenizer.length_bound.min_tokens_of("x" * 101) == 11


def test_a_vocabulary_that_cannot_be_decoded_is_refused() -> None:
    """At load, not by the first answer."""
    with pytest.raises(ConfigError, match="tokenizer.decoder"):
        SubwordTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), eos_token_ids=[], chat_format=None)


class Panic(BaseException):
    """Raised by the library when its Rust code panics: it is not an `Exception`."""


@pytest.mark.parametrize("error", [ValueError("two\nlines"), Panic("two\nlines")])
def test_an_error_of_the_library_is_a_source_error(error: BaseException) -> None:
    """Its message is one line."""
    with pytest.raises(ModelSourceError, match="m.json is damaged: two lines"):
        with library_errors("m.json is damaged"):
            raise error


@pytest.mark.parametrize("error", [ConfigError("x", "y"), KeyboardInterrupt()])
def test_an_error_that_is_not_the_librarys_passes(error: BaseException) -> None:
    """Errors of this project and interrupts are not changed."""
    with pytest.raises(type(error)) as caught, library_errors("m.json is damaged"):
        raise error
    assert caught.value is error


def test_no_list_is_made_of_more_tokens_than_the_caller_can_use() -> None:
    """The error has their number."""
    with pytest.raises(TooManyTokens) as caught:
        subword().encode("12345", max_tokens=4)
    assert caught.value.n_tokens == 5
