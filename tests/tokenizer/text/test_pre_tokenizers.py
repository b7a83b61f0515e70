"""How text is split before merging. The expected words come from the models' own `tokenizer.json`."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConfigError
from sluiceway.tokenizer.text.pre_tokenizers import SPLITTINGS, splitting_named

TEXT = "I'M 12345 camelCASE don't\r\n\n  漢字, x+=1//a"


def words(name: str, text: str) -> list[str]:
    """Return the pieces of the text, not in the byte alphabet."""
    return [text[start:end] for _, (start, end) in splitting_named(name).pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", "I|'|M| 12345| camelCASE| don|'t|\r\n\n | 漢字|,| x|+=|1|//|a"),
        ("smollm", "I|'|M| |1|2|3|4|5| camelCASE| don|'t|\r\n\n | 漢字|,| x|+=|1|//|a"),
        ("llama-bpe", "I|'M| |123|45| camelCASE| don|'t|\r\n\n| | 漢字|,| x|+=|1|//|a"),
        ("qwen2", "I|'M| |1|2|3|4|5| camelCASE| don|'t|\r\n\n| | 漢字|,| x|+=|1|//|a"),
        ("tekken", "I|'M| |1|2|3|4|5| camel|CASE| don|'t|\r\n\n| | 漢字|,| x|+=|1|//|a"),
        ("gpt-4o", "I'M| |123|45| camel|CASE| don't|\r\n\n| | 漢字|,| x|+=|1|//|a"),
        ("deepseek-coder", "I|'|M| |1|2|3|4|5| camelCASE| don|'|t|\r|\n|\n| | |漢字|,| x|+=|1|//|a"),
        ("deepseek-v3", "I|'M| |123|45| camelCASE| don|'t|\r\n\n|  |漢字|,| x|+=|1|//|a"),
    ],
)
def test_text_is_split_as_the_named_model_splits_it(name: str, expected: str) -> None:
    """With contractions, digits, capitals, line breaks, spaces, ideographs and operators."""
    assert "|".join(words(name, TEXT)) == expected


@pytest.mark.parametrize("name", sorted(SPLITTINGS))
def test_no_text_is_lost_whatever_the_splitting(name: str) -> None:
    """The joined words are the text."""
    text = TEXT + "\t\u3000é\u0301 ٣٤ Ⅷ ½ \U00010428 👩‍🚀 \x00…"
    assert "".join(words(name, text)) == text


def test_only_qwen_composes_letters() -> None:
    """Its `tokenizer.json` asks for NFC."""
    normalizer = splitting_named("qwen2").normalizer()
    assert normalizer is not None and normalizer.normalize_str("e\u0301") == "é"
    assert splitting_named("smollm").normalizer() is None


@pytest.mark.parametrize("name", ["kimi-k9", "", None])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(name: str | None) -> None:
    """A guess would give wrong tokens without any error."""
    with pytest.raises(ConfigError, match="tokenizer.ggml.pre.*smollm"):
        splitting_named(name)
