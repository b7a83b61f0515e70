"""A complete model directory for `serve`: random weights, the small byte-level vocabulary, a chat template."""

from __future__ import annotations

from pathlib import Path

from support import tiny_models, vocabularies

CONTEXT = 65_536
"""Long enough that an endless answer takes longer than a test."""


def write_model(path: Path, chat_template: str) -> str:
    """Writes the model, and returns its path as `serve` takes it."""
    vocab_size = vocabularies.byte_level().get_vocab_size()
    model = tiny_models.reference_model(vocab_size=vocab_size, max_position_embeddings=CONTEXT)
    tiny_models.saved(model, path)
    config = {"bos_token": vocabularies.BOS, "eos_token": vocabularies.EOS, "chat_template": chat_template}
    return str(vocabularies.write_directory(path, tokenizer_config=config))
