"""Qwen2, and Qwen2.5."""

from __future__ import annotations

from sluiceway.model.architectures.architecture import COMMON_DEFAULTS, Architecture

QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    defaults={
        **COMMON_DEFAULTS,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
    },
    has_qkv_bias=True,
    gguf_name="qwen2",
)
