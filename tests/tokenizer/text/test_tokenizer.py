"""Tests that every kind of tokenizer must pass."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import RequestError
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.directory_tokenizer import load_directory_tokenizer
from sluiceway.tokenizer.text.gguf_tokenizer import load_gguf_tokenizer, tokenizer_of
from sluiceway.tokenizer.text.tokenizer import Tokenizer, TooManyTokens
from support import vocabularies
from support.chats import encode_chat, render_chat

KINDS = ["byte", "directory", "gguf-byte-level", "gguf-sentencepiece", "real-model"]
TEXTS = [
    "",
    " ",
    "hello world",
    "  two  spaces\n\n\ttab ",
    "it's 12345 o'clock",
    "漢字かな한글",
    "😀👨‍👩‍👧 e\u0301 \ufffd",
    "a\0b\ufeff\uffff",
    "x" * 500,
]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    makers: dict[str, Callable[[], Tokenizer]] = {
        "byte": ByteTokenizer,
        "directory": lambda: load_directory_tokenizer(str(_directory(tmp_path_factory))),
        "gguf-byte-level": lambda: tokenizer_of(vocabularies.byte_level_gguf()),
        "gguf-sentencepiece": lambda: tokenizer_of(vocabularies.sentencepiece_gguf()),
        "real-model": lambda: load_gguf_tokenizer(vocabularies.real_model()),
    }
    return makers[request.param]()


def _directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabularies.write_directory(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("text", TEXTS)
def test_decode_gives_back_the_text_that_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    """Nothing is lost."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_encode_keeps_the_promised_bounds(tokenizer: Tokenizer, text: str) -> None:
    """The length bound holds, and ids are below the size of the vocabulary."""
    ids = tokenizer.encode(text)
    assert len(ids) >= tokenizer.length_bound.min_tokens_of(text)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    plain = tokenizer.encode(text, add_special_tokens=False)
    assert ids[len(ids) - len(plain) :] == plain


def test_min_tokens_grows_with_the_text(tokenizer: Tokenizer) -> None:
    """A bound that is always 0 would be true and useless."""
    n_chars = 1_000_000
    assert tokenizer.length_bound.min_tokens_of("x" * n_chars) >= n_chars // tokenizer.length_bound.max_token_bytes


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff\ud800 ok"])
def test_encode_refuses_text_that_is_not_unicode(tokenizer: Tokenizer, text: str) -> None:
    """A lone surrogate is a 400. Its length bound can be computed."""
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode(text)
    assert tokenizer.length_bound.min_tokens_of(text) >= 0


def test_a_rendered_chat_is_encoded_without_further_special_tokens(tokenizer: Tokenizer) -> None:
    """The chat format writes the special tokens itself."""
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    rendered = render_chat(tokenizer, messages)
    assert "hello" in rendered and "yes" in rendered
    assert len(encode_chat(tokenizer, messages)) <= len(tokenizer.encode(rendered))


def test_encode_gives_no_more_than_max_tokens(tokenizer: Tokenizer) -> None:
    """The error has the number of tokens."""
    text = "one two three"
    n_tokens = len(tokenizer.encode(text))
    assert len(tokenizer.encode(text, max_tokens=n_tokens)) == n_tokens
    with pytest.raises(TooManyTokens) as caught:
        tokenizer.encode(text, max_tokens=n_tokens - 1)
    assert caught.value.n_tokens == n_tokens


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    """The end token is never part of the text."""
    assert tokenizer.eos_token_ids
    assert tokenizer.decode(tokenizer.eos_token_ids) == ""
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in tokenizer.eos_token_ids)


def test_pushes_and_flush_are_the_decoded_text_for_random_ids(tokenizer: Tokenizer) -> None:
    """Also for ids outside the vocabulary."""
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(-1, tokenizer.vocab_size + 8) for _ in range(rng.randrange(60))]
        detokenizer = tokenizer.detokenizer()
        pieces = [detokenizer.push(token_id) for token_id in ids]
        assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)


def test_encode_gives_the_same_ids_in_parallel_threads(tokenizer: Tokenizer) -> None:
    """The event loop and the threads for long prompts share one tokenizer."""
    texts = [text * 20 for text in TEXTS]
    expected = [tokenizer.encode(text) for text in texts]
    results: list[list[list[int]]] = []
    threads = [
        threading.Thread(target=lambda: results.append([tokenizer.encode(text) for text in texts])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


@settings(deadline=None, derandomize=True)
@given(text=st.text(max_size=40))
def test_encode_accepts_any_unicode_text(tokenizer: Tokenizer, text: str) -> None:
    """The length bound holds for all of it."""
    assert len(tokenizer.encode(text)) >= tokenizer.length_bound.min_tokens_of(text)
