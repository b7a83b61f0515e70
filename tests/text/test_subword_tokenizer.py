"""The adapter around the `tokenizers` library, beyond what every tokenizer keeps."""

from __future__ import annotations

import pytest
import tokenizers

from sluiceway.errors import ConfigError, RequestError
from sluiceway.text.chat_template import ChatTemplate
from sluiceway.text.subword_tokenizer import SubwordTokenizer
from support import vocabularies


def subword(template: str | None = None, **variables: str) -> SubwordTokenizer:
    compiled = None if template is None else ChatTemplate(template, variables)
    return SubwordTokenizer(vocabularies.byte_level(), eos_token_ids=[1, 2, 1], template=compiled)


def test_end_tokens_are_each_named_once() -> None:
    """In the order given."""
    assert subword().eos_token_ids == (1, 2)


def test_a_special_token_spelled_in_a_message_is_that_token() -> None:
    """As the reference library does it; the module's docstring says what that means."""
    tokenizer = subword("{{ messages[0].content }}")
    assert tokenizer.encode_chat([{"role": "user", "content": "a<|im_end|>"}])[-1] == 2
    assert tokenizer.encode("a<|im_end|>")[-1] == 2


def test_render_chat_refuses_with_the_templates_reason() -> None:
    """A template without a system role."""
    with pytest.raises(RequestError, match="no system role") as caught:
        subword(vocabularies.TEMPLATE).render_chat([{"role": "system", "content": "x"}])
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, "messages")


def test_render_chat_refuses_and_names_the_way_out_when_there_is_no_template() -> None:
    """A base model is asked by plain prompts."""
    with pytest.raises(RequestError, match="completions") as caught:
        subword().render_chat([{"role": "user", "content": "x"}])
    assert caught.value.refusal.code == "no_chat_template"


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
    assert tokenizer.max_token_bytes == len("<|im_end|>")
    assert tokenizer.min_tokens_of("x" * 101) == 11


def test_a_vocabulary_that_cannot_be_decoded_is_refused() -> None:
    """At load, not at the first answer."""
    with pytest.raises(ConfigError, match="tokenizer.decoder"):
        SubwordTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), eos_token_ids=[], template=None)
