"""Tokenizers out of model directories: which file says what, and what happens when one is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sluiceway.errors import ConfigError, ModelSourceError, RequestError
from sluiceway.text.directory_tokenizer import load_directory_tokenizer
from support import vocabularies
from support.vocabularies import BOS, EOS, TEMPLATE, write_directory

USER = [{"role": "user", "content": "hi"}]


def rendered(path: Path) -> str:
    return load_directory_tokenizer(str(path)).render_chat(USER)


def test_load_gives_the_tokens_and_the_chat_format_of_the_files(tmp_path: Path) -> None:
    """Ids of `tokenizer.json`, template and special tokens of `tokenizer_config.json`."""
    tokenizer = load_directory_tokenizer(str(write_directory(tmp_path)))
    assert tokenizer.encode("the fox 12") == vocabularies.byte_level().encode("the fox 12").ids
    assert tokenizer.render_chat(USER) == f"{BOS}[user] hi<|im_end|>[assistant]"
    assert tokenizer.eos_token_ids == (1,)


@pytest.mark.parametrize(
    ("generation_config", "config", "expected"),
    [
        ({"eos_token_id": 2}, {}, (2, 1)),
        ({"eos_token_id": [2, 0]}, {"eos_token_id": 0}, (2, 0, 1)),
        ({}, {"eos_token_id": 2}, (2, 1)),
        ({"eos_token_id": None}, {}, (1,)),
    ],
)
def test_end_tokens_are_all_that_the_files_name(
    tmp_path: Path, generation_config: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """Generation's own first, each once."""
    path = write_directory(tmp_path, generation_config=generation_config, config=config)
    assert load_directory_tokenizer(str(path)).eos_token_ids == expected


def test_special_tokens_come_from_the_map_when_the_configuration_has_none(tmp_path: Path) -> None:
    """`special_tokens_map.json` is the older place."""
    tokens_map = {"bos_token": {"content": BOS}, "eos_token": EOS}
    path = write_directory(tmp_path, special_tokens_map=tokens_map, tokenizer_config={"chat_template": TEMPLATE})
    assert rendered(path).startswith(BOS)
    assert load_directory_tokenizer(str(path)).eos_token_ids == (1,)


def test_a_named_end_token_is_hidden_even_if_the_vocabulary_calls_it_ordinary(tmp_path: Path) -> None:
    """What the configuration calls special is special; what the vocabulary does not have is not added."""
    write_directory(tmp_path, tokenizer_config={"eos_token": "x", "pad_token": "<not there>"})
    tokenizer = load_directory_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("fox")) == "fo"
    assert tokenizer.vocab_size == vocabularies.byte_level().get_vocab_size()


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    """`chat_template.jinja` is the newer place."""
    write_directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}!", encoding="utf-8")
    assert rendered(tmp_path) == f"{EOS}!"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    """Some models have one more for tools."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    assert rendered(write_directory(tmp_path, tokenizer_config={"chat_template": named})) == "chat"


@pytest.mark.parametrize("template", [None, [{"name": "tool_use", "template": "tools"}]])
def test_a_chat_is_refused_when_there_is_no_default_template(tmp_path: Path, template: object) -> None:
    """A base model, or one with templates for tools alone."""
    with pytest.raises(RequestError, match="no chat template"):
        rendered(write_directory(tmp_path, tokenizer_config={"chat_template": template}))


def test_prompts_are_neither_cut_nor_padded_whatever_the_file_says(tmp_path: Path) -> None:
    """Limits of a training run stay out of serving."""
    write_directory(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_directory_tokenizer(str(tmp_path))
    assert len(loaded.encode("1")) == 1
    assert len(loaded.encode("1" * 30)) == 30


def test_one_file_is_enough(tmp_path: Path) -> None:
    """A base model in its barest form."""
    vocabularies.byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_directory_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("fox")) == "fox"
    assert tokenizer.eos_token_ids == ()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", None, "needs a tokenizer.json"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        ("tokenizer_config.json", b"{", "not JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "not JSON"),
        ("generation_config.json", b"[]", "JSON object"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    """The operator learns which file, and what is wrong with it."""
    write_directory(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelSourceError, match=reason) as caught:
        load_directory_tokenizer(str(tmp_path))
    assert name in str(caught.value)


def test_a_template_that_does_not_parse_is_refused(tmp_path: Path) -> None:
    """At load, not at the first chat."""
    with pytest.raises(ConfigError, match="chat_template"):
        load_directory_tokenizer(str(write_directory(tmp_path, tokenizer_config={"chat_template": "{% for %}"})))


def test_tokens_and_renderings_equal_those_of_transformers(tmp_path: Path) -> None:
    """The library that defines the directory's form, on the same directory."""
    from transformers import PreTrainedTokenizerFast

    config = {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE}
    path = str(write_directory(tmp_path, tokenizer_config=config))
    ours, theirs = load_directory_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for content in ("hi", "  <b> & 'x'\n", "a<|im_end|>b", "</s>12", "😀"):
        chat = [{"role": "user", "content": content}]
        text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(chat) == text
        assert ours.encode_chat(chat) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(content) == theirs(content)["input_ids"]
