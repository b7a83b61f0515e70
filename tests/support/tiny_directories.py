"""A whole model directory that `serve` takes: random weights, the small byte-level vocabulary, a chat template."""

from __future__ import annotations

from pathlib import Path

from support import tiny_models, vocabularies

CONTEXT = 65_536
"""So long that an endless answer outlasts a test."""


def write_model(path: Path, chat_template: str) -> str:
    """Its path as `serve` wants it."""
    vocab_size = vocabularies.byte_level().get_vocab_size()
    model = tiny_models.reference_model(vocab_size=vocab_size, max_position_embeddings=CONTEXT)
    tiny_models.saved(model, path)
    config = {"bos_token": vocabularies.BOS, "eos_token": vocabularies.EOS, "chat_template": chat_template}
    return str(vocabularies.write_directory(path, tokenizer_config=config))
