"""Tokenizers of GGUF metadata, compared with independent references in plain Python."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.tokenizer.text.gguf_metadata import read_metadata
from sluiceway.tokenizer.text.gguf_tokenizer import load_gguf_eos_token_ids, load_gguf_tokenizer, tokenizer_of
from support import gguf_files, vocabularies
from support.bpe_reference import GptTwoReference, SentencePieceReference, random_texts
from support.chats import encode_chat, render_chat

BYTE_LEVEL = vocabularies.byte_level_gguf()
SENTENCEPIECE = vocabularies.sentencepiece_gguf()


def changed(metadata: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Change values under `tokenizer.ggml.`; None removes a key."""
    both = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in both.items() if value is not None}


def test_load_gives_the_tokenizer_of_a_file(tmp_path: Path) -> None:
    """Read from disk."""
    path = gguf_files.write(tmp_path / "m.gguf", BYTE_LEVEL)
    tokenizer = load_gguf_tokenizer(str(path))
    assert tokenizer.encode("the fox") == vocabularies.byte_level().encode("the fox").ids
    assert tokenizer.eos_token_ids == load_gguf_eos_token_ids(str(path)) == (1, 2)
    assert tokenizer.vocab_size == len(BYTE_LEVEL["tokenizer.ggml.tokens"])


def test_byte_level_tokens_equal_the_vocabulary_they_were_taken_from() -> None:
    """The lists of the file rebuild the same tokenizer."""
    tokenizer = tokenizer_of(BYTE_LEVEL)
    for text in random_texts(400, seed=5):
        assert tokenizer.encode(text) == vocabularies.byte_level().encode(text).ids, text


def test_sentencepiece_tokens_equal_merging_by_score() -> None:
    """With space marks, fallback bytes and special tokens."""
    tokenizer = tokenizer_of(SENTENCEPIECE)
    reference = SentencePieceReference(SENTENCEPIECE)
    rng = random.Random(2)
    for _ in range(500):
        text = "".join(rng.choice(["hello", "the ", "wor", "ld", " ", "x", "é", "\n", "漢", "."]) for _ in range(8))
        assert tokenizer.encode(text) == [1, *reference.encode(text)], text


def test_the_pair_with_the_better_score_is_merged_first() -> None:
    """Both pairs of a text share a letter, so one merge excludes the other."""
    tokens = [*SENTENCEPIECE["tokenizer.ggml.tokens"][:259], "q", "r", "s", "qr", "rs"]
    types = [*SENTENCEPIECE["tokenizer.ggml.token_type"][:259], *[1] * 5]
    for scores, parts in (([-1.0, -2.0], ["qr", "s"]), ([-2.0, -1.0], ["q", "rs"])):
        metadata = changed(SENTENCEPIECE, tokens=tokens, token_type=types, add_space_prefix=False, add_bos_token=False)
        tokenizer = tokenizer_of(changed(metadata, scores=[0.0] * 262 + scores))
        assert tokenizer.encode("qrs") == [tokens.index(part) for part in parts]


def test_sentencepiece_adds_no_space_when_the_file_says_so() -> None:
    """With `add_space_prefix` false, the first word keeps its space."""
    tokenizer = tokenizer_of(changed(SENTENCEPIECE, add_space_prefix=False))
    with_space, without = tokenizer.encode(" hello"), tokenizer.encode("hello")
    assert with_space != without
    assert (tokenizer.decode(with_space), tokenizer.decode(without)) == (" hello", "hello")


def test_words_are_taken_whole_when_the_pre_tokenizer_says_so() -> None:
    """Llama 3 has words that no merge makes."""
    tokens = [*BYTE_LEVEL["tokenizer.ggml.tokens"], "zqzqzq"]
    more = changed(BYTE_LEVEL, tokens=tokens, token_type=[*BYTE_LEVEL["tokenizer.ggml.token_type"], 1])
    assert len(tokenizer_of(changed(more, pre="llama-bpe", add_bos_token=False)).encode("zqzqzq")) == 1
    assert len(tokenizer_of(changed(more, pre="dbrx")).encode("zqzqzq")) == 6


def test_letters_are_composed_when_the_pre_tokenizer_says_so() -> None:
    """Qwen 2 encodes `e` and an accent as one letter."""
    qwen, gpt_2 = tokenizer_of(changed(BYTE_LEVEL, pre="qwen2")), tokenizer_of(changed(BYTE_LEVEL, pre="gpt-2"))
    assert qwen.encode("e\u0301") == qwen.encode("é")
    assert gpt_2.encode("e\u0301") != gpt_2.encode("é")


@pytest.mark.parametrize(
    ("changes", "before", "behind"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [0], []),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
        ({"add_bos_token": True, "bos_token_id": 1, "add_eos_token": True}, [1], [1]),
        ({"add_bos_token": True, "bos_token_id": None}, [], []),
        ({"pre": "llama-bpe"}, [0], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(changes: dict[str, Any], before: list[int], behind: list[int]) -> None:
    """The flags of the file decide, else the kind of vocabulary. Chats get neither."""
    tokenizer = tokenizer_of(changed(BYTE_LEVEL, **changes))
    plain = tokenizer.encode("fox", add_special_tokens=False)
    assert tokenizer.encode("fox") == [*before, *plain, *behind]


def test_special_tokens_are_parsed_in_text_and_hidden_in_the_answer() -> None:
    """Control tokens have no text. User-defined ones are single tokens with a text."""
    tokenizer = tokenizer_of(SENTENCEPIECE)
    user = SENTENCEPIECE["tokenizer.ggml.tokens"].index("<user>")
    control = SENTENCEPIECE["tokenizer.ggml.tokens"].index("<|im_end|>")
    ids = tokenizer.encode("the<|im_end|><user>", add_special_tokens=False)
    assert ids[-2:] == [control, user]
    assert tokenizer.decode(ids) == "the<user>"


def test_end_tokens_include_all_that_end_a_turn() -> None:
    """EOS, end of turn, end of message, and control tokens with known spellings, without repetition."""
    assert tokenizer_of(changed(BYTE_LEVEL, eot_token_id=2, eom_token_id=0)).eos_token_ids == (1, 2, 0)
    ordinary = [3, 3, 1, *BYTE_LEVEL["tokenizer.ggml.token_type"][3:]]
    assert tokenizer_of(changed(BYTE_LEVEL, token_type=ordinary)).eos_token_ids == (1,)
    assert tokenizer_of(changed(BYTE_LEVEL, token_type=ordinary, eos_token_id=10**6)).eos_token_ids == ()


def test_the_template_gets_the_texts_of_special_tokens() -> None:
    """`bos_token` in the template is the file's token."""
    rendered = render_chat(tokenizer_of(BYTE_LEVEL), [{"role": "user", "content": "hi"}])
    assert rendered == "<s>[user] hi<|im_end|>[assistant]"


def test_there_is_no_chat_format_when_the_file_has_no_template() -> None:
    """Base models have none."""
    metadata = {key: value for key, value in BYTE_LEVEL.items() if key != "tokenizer.chat_template"}
    assert tokenizer_of(metadata).chat_format is None


def test_ids_without_a_token_are_ignored() -> None:
    """Padded vocabularies have empty entries, of any type."""
    tokens, types = BYTE_LEVEL["tokenizer.ggml.tokens"], BYTE_LEVEL["tokenizer.ggml.token_type"]
    padded = changed(BYTE_LEVEL, tokens=["", *tokens, "", "pad"], token_type=[3, *types, 1, 1])
    tokenizer = tokenizer_of(padded)
    assert tokenizer.encode("fox") == [token_id + 1 for token_id in vocabularies.byte_level().encode("fox").ids]
    assert tokenizer.decode([0, len(tokens) + 1]) == ""


def test_types_may_be_missing() -> None:
    """In old files without `token_type`, every token is ordinary."""
    tokenizer = tokenizer_of(changed(BYTE_LEVEL, token_type=None))
    assert tokenizer.decode(tokenizer.encode("<s>")) == "<s>"


def test_an_unknown_token_may_be_missing() -> None:
    """It is not needed if all fallback bytes are there."""
    tokenizer = tokenizer_of(changed(SENTENCEPIECE, unknown_token_id=None))
    assert tokenizer.decode(tokenizer.encode("漢 the")) == "漢 the"


@pytest.mark.parametrize(
    ("metadata", "error", "reason"),
    [
        (changed(BYTE_LEVEL, model="bert"), ConfigError, "'bert' is not supported"),
        (changed(BYTE_LEVEL, model=None), ConfigError, "tokenizer.ggml.model"),
        (changed(BYTE_LEVEL, pre="unknown-name"), ConfigError, "unknown-name"),
        (changed(BYTE_LEVEL, pre=None), ConfigError, "tokenizer.ggml.pre"),
        (changed(BYTE_LEVEL, tokens=None), ModelSourceError, "tokens is missing"),
        (changed(BYTE_LEVEL, merges=None), ModelSourceError, "merges is missing"),
        (changed(BYTE_LEVEL, merges=["nowhere to"]), ModelSourceError, "damaged"),
        (changed(BYTE_LEVEL, merges=["alone"]), ModelSourceError, "damaged"),
        (changed(BYTE_LEVEL, token_type=[1]), ModelSourceError, "1 entries for"),
        (changed(BYTE_LEVEL, tokens=["a", "", "", "a"], token_type=None), ModelSourceError, "twice"),
        (changed(BYTE_LEVEL, tokens=[["a"]], token_type=None), ModelSourceError, "damaged"),
        ({**BYTE_LEVEL, "tokenizer.chat_template": 5}, ConfigError, "chat_template"),
        (changed(SENTENCEPIECE, scores=[0.0]), ModelSourceError, "1 entries for"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_refused_with_the_reason(
    metadata: dict[str, Any], error: type[Exception], reason: str
) -> None:
    """The error names the unknown kind, or the damaged list."""
    with pytest.raises(error, match=reason):
        tokenizer_of(metadata)


def test_real_tokens_equal_a_plain_reference() -> None:
    """The reference has SmolLM2's rules (single digits, GPT-2 words, merges by rank) in plain Python."""
    path = vocabularies.real_model()
    tokenizer, reference = load_gguf_tokenizer(path), GptTwoReference(read_metadata(path))
    for text in random_texts(2500, seed=11):
        assert tokenizer.encode(text) == reference.encode(text), text


def test_real_chat_has_the_default_system_prompt_and_special_tokens() -> None:
    """The template of the file adds a system prompt unless there is one."""
    tokenizer = load_gguf_tokenizer(vocabularies.real_model())
    rendered = render_chat(tokenizer, [{"role": "user", "content": "Hi"}])
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    own = render_chat(tokenizer, [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}])
    assert own == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = encode_chat(tokenizer, [{"role": "user", "content": "Hi"}])
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)
    assert tokenizer.eos_token_ids == (2,)


@pytest.mark.slow
def test_real_tokens_and_chats_equal_those_of_transformers() -> None:
    """The library that defines the formats, on the same file.

    Reading GGUF it ignores `tokenizer.ggml.pre`, so that spaces before digits come out otherwise than from the model's
    own `tokenizer.json`; the splitting of that file is put in.
    """
    from transformers import AutoTokenizer

    path = Path(vocabularies.real_model())
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ours = load_gguf_tokenizer(str(path))
    for text in random_texts(3000, seed=12):
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        chat = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "?"},
        ]
        for messages in (chat, [{"role": "system", "content": text}, *chat]):
            assert render_chat(ours, messages) == theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )


def test_end_tokens_are_refused_if_the_tokenizer_is(tmp_path: Path) -> None:
    """The engine process reads only the end tokens."""
    lists = (gguf_files.ARRAY, [(gguf_files.STRING, ["a"])])
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_files.head([("tokenizer.ggml.tokens", gguf_files.ARRAY, lists)]))
    with pytest.raises(ModelSourceError, match="damaged"):
        load_gguf_eos_token_ids(str(path))
