"""Loads the tokenizer of a model, or only its end tokens."""

from __future__ import annotations

import os
from typing import assert_never

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.tokenizer import Tokenizer
from sluiceway.types import TokenId


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Load the tokenizer.

    Raises `ModelSourceError` if a file is missing or damaged, `ModelConfigError` if it is not supported.
    """
    # A prompt is encoded by one thread, so the library's own threads would gain nothing and cause warnings after a
    # fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    match files.kind:
        case ModelKind.FAKE:
            return ByteTokenizer()
        case ModelKind.GGUF:
            from sluiceway.tokenizer.text.gguf_tokenizer import load_gguf_tokenizer

            return load_gguf_tokenizer(files.path)
        case ModelKind.DIRECTORY:
            from sluiceway.tokenizer.text.directory_tokenizer import load_directory_tokenizer

            return load_directory_tokenizer(files.path)
        case _:
            assert_never(files.kind)


def load_eos_token_ids(files: ModelFiles) -> tuple[TokenId, ...]:
    """Return `load_tokenizer(files).eos_token_ids`, or raise its errors, without building a slow encoder."""
    if files.kind is not ModelKind.GGUF:
        return load_tokenizer(files).eos_token_ids
    from sluiceway.tokenizer.text.gguf_tokenizer import load_gguf_eos_token_ids

    return load_gguf_eos_token_ids(files.path)
