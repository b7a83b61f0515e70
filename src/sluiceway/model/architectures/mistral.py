"""Mistral. Its GGUF files say that they are of Llama's architecture."""

from __future__ import annotations

from sluiceway.model.architectures.architecture import COMMON_DEFAULTS, Architecture

MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    defaults={
        **COMMON_DEFAULTS,
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "head_dim": None,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)
