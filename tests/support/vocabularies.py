"""Small vocabularies for tests, and the path of the real model's file."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

BOS, EOS, CONTROL = "<s>", "</s>", "<|im_end|>"
NORMAL, UNKNOWN, CONTROL_TYPE, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}[assistant]"
)

_CORPUS = [
    "the quick brown fox, the lazy dog; it's 1999",
    "def f(x):\n    return x + 1\n",
    "été à la plage, naïve 漢字",
] * 3


@functools.cache
def byte_level() -> tokenizers.Tokenizer:
    """Make a byte-level tokenizer over all 256 bytes, with split digits and three special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, CONTROL)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def byte_level_gguf() -> dict[str, Any]:
    """Make the metadata of a GGUF file with the vocabulary of `byte_level`."""
    model = json.loads(byte_level().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL_TYPE] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }


def sentencepiece_gguf() -> dict[str, Any]:
    """Make the metadata of a GGUF file with a small SentencePiece vocabulary and 256 fallback bytes."""
    pieces = [
        "▁",
        *"adehilnorstuwx.,",
        "he",
        "ll",
        "▁w",
        "▁t",
        "or",
        "▁the",
        "▁wor",
        "▁he",
        "llo",
        "▁hello",
        "ld",
        "▁world",
    ]
    tokens = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, CONTROL, "<user>"]
    n_pieces = len(pieces)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in range(n_pieces)] + [0.0, 0.0],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL_TYPE, CONTROL_TYPE]
        + [BYTE] * 256
        + [NORMAL] * n_pieces
        + [CONTROL_TYPE, USER_DEFINED],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_directory(path: Path, **files: Any) -> Path:
    """Write a model directory with the vocabulary of `byte_level`, and further JSON files by their stem."""
    byte_level().save(str(path / "tokenizer.json"))
    config = {"bos_token": BOS, "eos_token": {"content": EOS, "lstrip": False}, "chat_template": TEMPLATE}
    for stem, content in {"tokenizer_config": config, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def real_model() -> str:
    """Return the file of SmolLM2-135M-Instruct in `SLUICEWAY_TEST_MODEL`. Skips the test if it is not set."""
    path = os.environ.get("SLUICEWAY_TEST_MODEL")
    if not path:
        pytest.skip("SLUICEWAY_TEST_MODEL does not name the GGUF file of SmolLM2-135M-Instruct")
    return path
