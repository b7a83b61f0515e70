"""Reads the configuration of a model from the metadata of a GGUF file. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway.errors import ModelConfigError
from sluiceway.model.architectures.registry import BY_GGUF_NAME
from sluiceway.model.config import (
    MAX_ROPE_FACTOR,
    MAX_SIZE,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)
from sluiceway.model.fields import Fields, shown
from sluiceway.tokenizer.text.gguf_metadata import SkippedArray

SUPPORTED_ROPE_TYPES = ("none", "linear", "yarn")

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "attention.scale": (),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window_pattern": (),
    "attention.temperature_scale": (),
    "attention.value_residual_mix_lora_rank": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "embedding_scale": (1.0,),
    "residual_scale": (1.0,),
    "logit_scale": (1.0,),
    "expert_count": (0,),
    "no_rope_layer_step": (),
    "rope.dimension_sections": (),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "attention.q_lora_rank": (),
    "attention.kv_lora_rank": (),
    "attention.shared_kv_layers": (0,),
}
"""Keys, after the name of the architecture, that change what is computed, with the values at which they do not."""

_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_from_metadata(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Read the configuration. The `shapes` of tensors, rows first, show biases and a tied head."""
    fields = Fields(metadata, "GGUF metadata")
    arch = fields.text("general.architecture")
    if arch not in BY_GGUF_NAME:
        raise fields.wrong("general.architecture", f"{arch!r} is not supported; supported: {', '.join(BY_GGUF_NAME)}")
    _refuse_unsupported(fields, arch)
    hidden_size, n_heads = fields.integer(f"{arch}.embedding_length"), fields.integer(f"{arch}.attention.head_count")
    scaling = _rope_scaling(fields, arch)
    return ModelConfig(
        architecture=BY_GGUF_NAME[arch].name,
        n_layers=fields.integer(f"{arch}.block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", n_heads),
        head_dim=_head_dim(fields, arch, hidden_size // max(n_heads, 1)),
        vocab_size=_vocab_size(fields, arch, shapes),
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
    for key, neutral in REFUSED.items():
        value = fields.raw(f"{arch}.{key}")
        if value is not None and value not in neutral:
            raise fields.wrong(f"{arch}.{key}", f"{shown(value)} is not supported")


def _head_dim(fields: Fields, arch: str, default: int) -> int:
    head_dim = fields.integer(f"{arch}.attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(f"{arch}.{key}", head_dim) != head_dim:
            raise fields.wrong(f"{arch}.{key}", f"only the head size, {head_dim}, is supported")
    return head_dim


def _vocab_size(fields: Fields, arch: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of rows of the embedding: at least the number of tokens."""
    if "token_embd.weight" not in shapes:
        raise ModelConfigError("token_embd.weight", "the file has no such tensor")
    n_rows = shapes["token_embd.weight"][0]
    if (named := fields.integer(f"{arch}.vocab_size", n_rows)) != n_rows:
        raise fields.wrong(f"{arch}.vocab_size", f"is {named}, and token_embd.weight has {n_rows} rows")
    tokens = fields.raw("tokenizer.ggml.tokens")
    n_tokens = tokens.length if isinstance(tokens, SkippedArray) else len(tokens) if isinstance(tokens, list) else 0
    if n_tokens > n_rows:
        raise fields.wrong("tokenizer.ggml.tokens", f"has {n_tokens} entries, and token_embd.weight {n_rows} rows")
    return n_rows


def _sliding_window(fields: Fields, arch: str) -> int | None:
    return fields.integer(f"{arch}.attention.sliding_window", 0) or None


def _rope_scaling(fields: Fields, arch: str) -> RopeScaling | None:
    """The scaling in the metadata. Llama 3 has a table of frequencies instead, in the tensor `rope_freqs.weight`."""
    key = f"{arch}.rope.scaling.type"
    factor = fields.number(f"{arch}.rope.scaling.factor", fields.number(f"{arch}.rope.scale_linear", 1.0))
    kind = fields.text(key, "linear")
    if kind not in SUPPORTED_ROPE_TYPES:
        raise fields.wrong(key, f"{shown(kind)} is not supported; supported: {', '.join(SUPPORTED_ROPE_TYPES)}")
    if kind == "none":
        return None
    if not 1 <= factor <= MAX_ROPE_FACTOR:
        raise fields.wrong(
            f"{arch}.rope.scaling.factor", f"must be at least 1 and at most {MAX_ROPE_FACTOR:g}, not {factor:g}"
        )
    if kind == "linear":
        return LinearScaling(factor) if factor != 1.0 else None
    original_key = f"{arch}.rope.scaling.original_context_length"
    original = fields.integer(original_key, fields.integer(f"{arch}.context_length"))
    if not 1 <= original <= MAX_SIZE:
        raise fields.wrong(original_key, f"must be at least 1 and at most {MAX_SIZE}, not {original}")
    magnitude = yarn_magnitude(factor) * fields.number(f"{arch}.rope.scaling.attn_factor", 1.0)
    return YarnScaling(factor=factor, original_max_len=original, attention_factor=magnitude)
