"""Qwen3, without its mixtures of experts."""

from __future__ import annotations

from sluiceway.model.architectures.architecture import Architecture
from sluiceway.model.architectures.qwen2 import QWEN2

QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**QWEN2.defaults, "head_dim": 128, "attention_bias": False},
    has_qk_norm=True,
    gguf_name="qwen3",
)
