"""Tokenizers of model directories: what each file says, and errors in them."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from sluiceway.errors import ModelSourceError
from sluiceway.tokenizer.text.directory_tokenizer import load_directory_tokenizer
from support import vocabularies
from support.chats import encode_chat, render_chat
from support.damage import changed_json
from support.vocabularies import BOS, CONTROL, EOS, TEMPLATE, write_directory

USER = [{"role": "user", "content": "hi"}]


def rendered(path: Path) -> str:
    return render_chat(load_directory_tokenizer(str(path)), USER)


def test_load_gives_the_tokens_and_the_chat_format_of_the_files(tmp_path: Path) -> None:
    """Ids of `tokenizer.json`, template and special tokens of `tokenizer_config.json`."""
    tokenizer = load_directory_tokenizer(str(write_directory(tmp_path)))
    assert tokenizer.encode("the fox 12") == vocabularies.byte_level().encode("the fox 12").ids
    assert render_chat(tokenizer, USER) == f"{BOS}[user] hi<|im_end|>[assistant]"
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
    """Those of generation_config.json come first. No id is repeated."""
    path = write_directory(tmp_path, generation_config=generation_config, config=config)
    assert load_directory_tokenizer(str(path)).eos_token_ids == expected


def test_special_tokens_come_from_the_map_when_the_configuration_has_none(tmp_path: Path) -> None:
    """`special_tokens_map.json` is the older file."""
    tokens_map = {"bos_token": {"content": BOS}, "eos_token": EOS}
    path = write_directory(tmp_path, special_tokens_map=tokens_map, tokenizer_config={"chat_template": TEMPLATE})
    assert rendered(path).startswith(BOS)
    assert load_directory_tokenizer(str(path)).eos_token_ids == (1,)


def test_a_named_end_token_is_hidden_even_if_the_vocabulary_calls_it_ordinary(tmp_path: Path) -> None:
    """The configuration decides which tokens are special. Tokens that the vocabulary lacks are not added."""
    listed = {"additional_special_tokens": ["<nor this>", 7], "extra_special_tokens": ["o"]}
    write_directory(tmp_path, tokenizer_config={"eos_token": "x", "pad_token": "<not there>"} | listed)
    tokenizer = load_directory_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("fox")) == "f"
    assert tokenizer.vocab_size == vocabularies.byte_level().get_vocab_size()


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    """`chat_template.jinja` is the newer file."""
    write_directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}!", encoding="utf-8")
    assert rendered(tmp_path) == f"{EOS}!"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    """Some models have another one for tools."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    assert rendered(write_directory(tmp_path, tokenizer_config={"chat_template": named})) == "chat"


@pytest.mark.parametrize("template", [None, [{"name": "tool_use", "template": "tools"}]])
def test_there_is_no_chat_format_when_there_is_no_default_template(tmp_path: Path, template: object) -> None:
    """As in a base model, or in a model with templates for tools only."""
    path = write_directory(tmp_path, tokenizer_config={"chat_template": template})
    assert load_directory_tokenizer(str(path)).chat_format is None


@pytest.mark.parametrize("template", [[1], ["x"], [{"name": "default"}], [{"name": [], "template": "x"}], 5, {}, True])
def test_a_template_of_another_form_is_refused(tmp_path: Path, template: object) -> None:
    """It must be a text, or a list of named texts."""
    with pytest.raises(ModelSourceError, match=r"tokenizer_config.json: chat_template must be"):
        load_directory_tokenizer(str(write_directory(tmp_path, tokenizer_config={"chat_template": template})))


@pytest.mark.parametrize("named", [[{"name": "default", "template": 5}]])
def test_a_default_template_that_is_no_text_is_refused(tmp_path: Path, named: object) -> None:
    with pytest.raises(ModelSourceError, match="chat_template must be"):
        load_directory_tokenizer(str(write_directory(tmp_path, tokenizer_config={"chat_template": named})))


@pytest.mark.parametrize("token", [5, True, [], ["<s>"], {}, {"content": 5}])
@pytest.mark.parametrize("stem", ["tokenizer_config", "special_tokens_map"])
def test_a_special_token_that_is_no_text_is_refused(tmp_path: Path, stem: str, token: object) -> None:
    """The error names the file and the entry."""
    path = write_directory(tmp_path, **{stem: {"bos_token": token}})
    with pytest.raises(ModelSourceError, match=rf"{stem}.json: bos_token must be"):
        load_directory_tokenizer(str(path))


@pytest.mark.parametrize("token_id", ["x", 1.5, True, [None], [[1]], {}])
@pytest.mark.parametrize("stem", ["generation_config", "config"])
def test_an_end_token_that_is_no_id_is_refused(tmp_path: Path, stem: str, token_id: object) -> None:
    """If it were ignored, answers would not end."""
    path = write_directory(tmp_path, **{stem: {"eos_token_id": token_id}})
    with pytest.raises(ModelSourceError, match=rf"{stem}.json: eos_token_id must be"):
        load_directory_tokenizer(str(path))


def with_normalizer(path: Path, normalizer: object) -> str:
    """Write a directory whose tokenizer.json has this normaliser."""
    write_directory(path)
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": normalizer}), encoding="utf-8")
    return str(path)


def charsmap(n_units: int, *, size: int | None = None, replacements: bytes = b"") -> str:
    """Make the table of a Precompiled normaliser, whose trie has `n_units` empty units."""
    n_bytes = 4 * n_units if size is None else size
    return base64.b64encode(n_bytes.to_bytes(4, "little") + bytes(4 * n_units) + replacements).decode()


def test_a_precompiled_normaliser_is_loaded_when_it_is_whole(tmp_path: Path) -> None:
    """SentencePiece models in this format have one. An empty trie changes no text."""
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap(256)}]}
    tokenizer = load_directory_tokenizer(with_normalizer(tmp_path, normalizer))
    assert tokenizer.encode("the fox") == vocabularies.byte_level().encode("the fox").ids


@pytest.mark.parametrize(
    "table",
    [
        "",
        "AAAA",
        "!!!",
        5,
        None,
        charsmap(1),
        charsmap(256, size=2048),
        charsmap(257, size=1026),
        charsmap(256, replacements=b"\xff"),
    ],
)
def test_a_precompiled_normaliser_that_is_broken_is_refused(tmp_path: Path, table: object) -> None:
    """It would make the library panic, which prints a traceback and raises something that is not an `Exception`."""
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    with pytest.raises(ModelSourceError, match=r"tokenizer.json: has a Precompiled normaliser"):
        load_directory_tokenizer(with_normalizer(tmp_path, normalizer))


@pytest.mark.parametrize(
    "normalizer", [{"type": "Precompiled"}, {"type": "Sequence", "normalizers": [1, "Precompiled"]}]
)
def test_a_normaliser_of_another_form_is_refused(tmp_path: Path, normalizer: object) -> None:
    """Either the tokenizers library or our own check refuses it."""
    with pytest.raises(ModelSourceError, match=r"tokenizer.json: "):
        load_directory_tokenizer(with_normalizer(tmp_path, normalizer))


def test_prompts_are_neither_cut_nor_padded_whatever_the_file_says(tmp_path: Path) -> None:
    """The limits of a training run do not apply."""
    write_directory(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_directory_tokenizer(str(tmp_path))
    assert len(loaded.encode("1")) == 1
    assert len(loaded.encode("1" * 30)) == 30


def test_one_file_is_enough(tmp_path: Path) -> None:
    """As in a minimal base model."""
    vocabularies.byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_directory_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("fox")) == "fox"
    assert tokenizer.eos_token_ids == ()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", None, "needs a tokenizer.json"),
        ("tokenizer.json", b"{}", "not a readable tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        ("tokenizer.json", b"[" * 100_000, "not a readable tokenizer"),
        ("tokenizer.json", b'{"Precompiled":' * 100_000, "cannot be read"),
        ("tokenizer_config.json", b"{", "not JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "not JSON"),
        ("generation_config.json", b"[]", "JSON object"),
        ("added_tokens.json", b"[]", "JSON object"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    """The error names the file and says what is wrong."""
    write_directory(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelSourceError, match=reason) as caught:
        load_directory_tokenizer(str(tmp_path))
    assert name in str(caught.value)


N = vocabularies.byte_level().get_vocab_size()


def token(content: str, **flags: bool) -> dict[str, Any]:
    """Describe a token as tokenizer_config.json does. Missing flags are false."""
    return {
        "content": content,
        **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False),
    } | flags


def decoder(*tokens: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens_decoder": {str(N + i): token for i, token in enumerate(tokens)}}


ADDED: dict[str, dict[str, dict[str, Any]]] = {
    "special and ordinary": {"tokenizer_config": decoder(token("<tool>", special=True), token("<shown>"))},
    "flags": {
        "tokenizer_config": decoder(
            token("<left>", lstrip=True, special=True),
            token("<right>", rstrip=True),
            token("whole", single_word=True),
            token("NORM", normalized=True),
        )
    },
    "a token of the vocabulary": {
        "tokenizer_config": {"added_tokens_decoder": {"2": token(CONTROL, special=True), str(N): token("<tool>")}}
    },
    "other flags for a token of the vocabulary": {
        "tokenizer_config": {"added_tokens_decoder": {"2": token(CONTROL, lstrip=True)}}
    },
    "named as special": {"tokenizer_config": decoder(token("<tool>")) | {"eos_token": "<tool>"}},
    "listed as special": {"tokenizer_config": decoder(token("<tool>")) | {"additional_special_tokens": ["<tool>"]}},
    "listed by the newer name": {
        "tokenizer_config": decoder(token("<tool>")) | {"extra_special_tokens": {"tool": "<tool>"}}
    },
    "the older file": {"added_tokens": {"<tool>": N, "<shown>": N + 1, CONTROL: 2}},
    "the older file with specials": {
        "added_tokens": {"<tool>": N, "<shown>": N + 1},
        "special_tokens_map": {"eos_token": token("<tool>"), "additional_special_tokens": ["<shown>"]},
    },
    "an ordinary one listed as special": {"tokenizer_config": {"additional_special_tokens": ["the"]}},
    "both": {"tokenizer_config": decoder(token("<tool>", special=True)), "added_tokens": {"<tool>": N}},
}
TEXTS = (
    "a<tool>b <shown> c",
    "x <left> y <right> z",
    "a whole wholesome unwhole <|im_end|>",
    "the NORM norm",
    "a  <|im_end|> b<|im_end|>",
    "</s><tool><tool> 12",
)


@pytest.mark.parametrize("name", ADDED)
def test_tokens_of_the_other_files_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    """The same ids, hidden tokens, and stripped spaces."""
    from transformers import AutoTokenizer

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS} | ADDED[name].get("tokenizer_config", {})
    path = str(write_directory(tmp_path, **ADDED[name] | {"tokenizer_config": config}))
    ours, theirs = load_directory_tokenizer(path), AutoTokenizer.from_pretrained(path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_eos_token": True},
        {"add_bos_token": False},
        {"add_bos_token": None},
        {"add_bos_token": True, "bos_token": None},
    ],
)
@pytest.mark.parametrize("is_framed", [True, False])
def test_bos_and_eos_are_added_as_by_transformers(tmp_path: Path, settings: dict[str, Any], is_framed: bool) -> None:
    """Only tokenizer.json counts: the settings of tokenizer_config.json are for the program that wrote the file."""
    from transformers import AutoTokenizer

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS} | settings
    path = str(write_directory(tmp_path, tokenizer_config=config))
    if is_framed:
        tokenizer = tokenizers.Tokenizer.from_file(f"{path}/tokenizer.json")
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
        tokenizer.save(f"{path}/tokenizer.json")
    ours, theirs = load_directory_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert ours.encode("the fox") == theirs("the fox")["input_ids"]
    assert ours.encode("the fox", add_special_tokens=False) == theirs("the fox", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"added_tokens": {"<tool>": N + 5}}, f"added_tokens.json: the token '<tool>' has the id {N + 5}, but .* {N}$"),
        ({"added_tokens": {CONTROL: 3}}, "added_tokens.json: .*has the id 3, but by tokenizer.json it would have 2"),
        ({"added_tokens": {"<tool>": "7"}}, "must map texts to ids of tokens, not '<tool>' to '7'"),
        ({"added_tokens": {"": 7}}, "must map texts to ids"),
        ({"added_tokens": {"<tool>": True}}, "must map texts to ids"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": token("<tool>")}}}, f"has the id 7, but .* {N}$"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder must be an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": token("<tool>")}}}, "'x' is not a token id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9" * 99: token("<tool>")}}}, "is not a token id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": "<tool>"}}}, "id 7 must be an object with a text"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": token("")}}}, "id 7 must be an object with a text"),
        ({"tokenizer_config": decoder(token("<t>") | {"special": 1})}, "flags of id .* must be true or false"),
        (
            {"tokenizer_config": decoder(token("<tool>")), "added_tokens": {"<other>": N + 1}},
            f"added_tokens.json: the token '<other>' has the id {N + 1}, but by tokenizer.json it has none",
        ),
    ],
)
def test_added_tokens_that_contradict_the_vocabulary_are_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    """The model was trained on the ids that its files name."""
    with pytest.raises(ModelSourceError, match=message):
        load_directory_tokenizer(str(write_directory(tmp_path, **files)))


def test_other_damaged_files_load_or_raise_a_source_error(tmp_path: Path) -> None:
    """Unexpected values raise no other exception."""
    draw = random.Random(0)
    whole: dict[str, dict[str, Any]] = {
        "tokenizer_config": decoder(token("<tool>")) | {"bos_token": BOS, "additional_special_tokens": ["the", BOS]},
        "added_tokens": {"<tool>": N},
        "special_tokens_map": {"eos_token": token(EOS), "extra_special_tokens": {"a": "the"}},
        "generation_config": {"eos_token_id": [1, 2]},
    }
    for _ in range(300):
        name = draw.choice(sorted(whole))
        write_directory(tmp_path, **whole | {name: changed_json(whole[name], draw)})
        with contextlib.suppress(ModelSourceError):
            load_directory_tokenizer(str(tmp_path))


def test_tokens_and_renderings_equal_those_of_transformers(tmp_path: Path) -> None:
    """The reference library loads the same directory."""
    from transformers import PreTrainedTokenizerFast

    config = {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE}
    path = str(write_directory(tmp_path, tokenizer_config=config))
    ours, theirs = load_directory_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for content in ("hi", "  <b> & 'x'\n", "a<|im_end|>b", "</s>12", "😀"):
        chat = [{"role": "user", "content": content}]
        text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert render_chat(ours, chat) == text
        assert encode_chat(ours, chat) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(content) == theirs(content)["input_ids"]
