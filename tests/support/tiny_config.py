"""The configuration of a model that is small enough to count its shapes by hand."""

from __future__ import annotations

from typing import Any

from sluiceway.model.config import ModelConfig


def tiny_config(**changes: Any) -> ModelConfig:
    """By default one layer, with four query heads of eight numbers on two key heads."""
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "n_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": 100,
        "max_model_len": 256,
        "rms_eps": 1e-5,
        "rope_theta": 1e4,
    }
    return ModelConfig(**fields | changes)
