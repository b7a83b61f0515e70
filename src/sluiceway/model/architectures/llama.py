"""Llama, and the many models that have its architecture, such as SmolLM2."""

from __future__ import annotations

from sluiceway.model.architectures.architecture import COMMON_DEFAULTS, Architecture

LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    defaults={
        **COMMON_DEFAULTS,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    },
    gguf_name="llama",
    is_paired_in_gguf=True,
)
