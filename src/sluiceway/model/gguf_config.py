"""Reads the model's numbers out of the metadata of a GGUF file. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway.errors import ConfigError
from sluiceway.model.config import LinearScaling, ModelConfig, RopeScaling, YarnScaling, yarn_magnitude
from sluiceway.model.fields import Fields

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")

_UNSUPPORTED_KEYS = (
    "attention.scale",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attention.sliding_window_pattern",
)
"""Each changes what is computed."""

_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_from_metadata(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """`shapes` are those of the file's tensors, rows first: biases and a tied head show only there."""
    fields = Fields(metadata, "GGUF metadata")
    arch = fields.text("general.architecture")
    if arch not in SUPPORTED_ARCHITECTURES:
        raise fields.wrong(
            "general.architecture", f"{arch!r} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    _refuse_unsupported(fields, arch)
    hidden_size, n_heads = fields.integer(f"{arch}.embedding_length"), fields.integer(f"{arch}.attention.head_count")
    scaling = _rope_scaling(fields, arch)
    return ModelConfig(
        architecture=arch,
        n_layers=fields.integer(f"{arch}.block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", n_heads),
        head_dim=_head_dim(fields, arch, hidden_size // max(n_heads, 1)),
        vocab_size=_vocab_size(shapes),
        max_model_len=fields.integer(f"{arch}.context_length"),
        rms_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{arch}.rope.freq_base", 10_000.0),
        rope_scaling=scaling,
        sliding_window=_sliding_window(fields, arch),
        is_tied="output.weight" not in shapes,
        has_qkv_bias="blk.0.attn_q.bias" in shapes,
        has_out_bias="blk.0.attn_output.bias" in shapes,
        has_mlp_bias="blk.0.ffn_down.bias" in shapes,
        has_qk_norm="blk.0.attn_q_norm.weight" in shapes,
        eos_token_ids=tuple(sorted({t for key in _END_TOKEN_KEYS for t in fields.integers(f"tokenizer.ggml.{key}")})),
    )


def _refuse_unsupported(fields: Fields, arch: str) -> None:
    for key in _UNSUPPORTED_KEYS:
        if fields.has(f"{arch}.{key}"):
            raise fields.wrong(f"{arch}.{key}", "is not supported")
    if fields.integer(f"{arch}.expert_count", 0):
        raise fields.wrong(f"{arch}.expert_count", "mixtures of experts are not supported")


def _head_dim(fields: Fields, arch: str, default: int) -> int:
    head_dim = fields.integer(f"{arch}.attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(f"{arch}.{key}", head_dim) != head_dim:
            raise fields.wrong(f"{arch}.{key}", f"only the head size, {head_dim}, is supported")
    return head_dim


def _vocab_size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    if "token_embd.weight" not in shapes:
        raise ConfigError("token_embd.weight", "the file has no such tensor")
    return shapes["token_embd.weight"][0]


def _sliding_window(fields: Fields, arch: str) -> int | None:
    return fields.integer(f"{arch}.attention.sliding_window", 0) or None


def _rope_scaling(fields: Fields, arch: str) -> RopeScaling | None:
    """Scaling by a table of frequencies (Llama 3) is no metadata but the tensor `rope_freqs.weight`."""
    key = f"{arch}.rope.scaling.type"
    factor = fields.number(f"{arch}.rope.scaling.factor", fields.number(f"{arch}.rope.scale_linear", 1.0))
    match fields.text(key, "linear"):
        case "none":
            return None
        case "linear":
            return LinearScaling(factor) if factor != 1.0 else None
        case "yarn":
            original = fields.integer(
                f"{arch}.rope.scaling.original_context_length", fields.integer(f"{arch}.context_length")
            )
            magnitude = yarn_magnitude(factor) * fields.number(f"{arch}.rope.scaling.attn_factor", 1.0)
            return YarnScaling(factor=factor, original_max_len=original, attention_factor=magnitude)
        case unknown:
            raise fields.wrong(key, f"{unknown!r} is not supported; supported: none, linear, yarn")
