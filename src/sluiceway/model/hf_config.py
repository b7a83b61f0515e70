"""Reads the config.json and generation_config.json of a model directory. Knows no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluiceway.errors import ModelSourceError
from sluiceway.model.config import LinearScaling, Llama3Scaling, ModelConfig, RopeScaling, YarnScaling, yarn_magnitude
from sluiceway.model.fields import Fields

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


def read_directory_config(directory: Path) -> ModelConfig:
    """The model in this directory. Raises `ModelSourceError` for unreadable files, `ConfigError` for wrong values."""
    generation = directory / "generation_config.json"
    return config_from_json(
        _read_json(directory / "config.json"), _read_json(generation) if generation.exists() else None
    )


def config_from_json(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """The end tokens of both files count: chat models name the end of a turn only in the second."""
    fields = Fields(config, "config.json")
    architecture = _architecture(fields)
    _refuse_unsupported(fields)
    rope = _rope_fields(fields)
    max_len = fields.integer("max_position_embeddings")
    scaling = _rope_scaling(rope, max_len)
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    has_attention_bias = fields.flag("attention_bias", False) and architecture != "MistralForCausalLM"
    eos = fields.integers("eos_token_id") + Fields(generation or {}, "generation_config.json").integers("eos_token_id")
    return ModelConfig(
        architecture=architecture,
        n_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads),
        head_dim=fields.integer("head_dim", hidden_size // max(n_heads, 1)),
        vocab_size=fields.integer("vocab_size"),
        max_model_len=_extended_len(max_len, scaling),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10_000.0)),
        rope_scaling=scaling,
        sliding_window=_sliding_window(fields, architecture),
        is_tied=fields.flag("tie_word_embeddings", False),
        has_qkv_bias=is_qwen2 or has_attention_bias,
        has_out_bias=has_attention_bias and not is_qwen2,
        has_mlp_bias=fields.flag("mlp_bias", False) and architecture == "LlamaForCausalLM",
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        eos_token_ids=tuple(sorted(set(eos))),
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelSourceError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelSourceError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"{path}: must hold a JSON object")
    return content


def _architecture(fields: Fields) -> str:
    names = fields.raw("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in SUPPORTED_ARCHITECTURES:
        raise fields.wrong(
            "architectures", f"{name!r} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return str(name)


def _refuse_unsupported(fields: Fields) -> None:
    """What would change the numbers and is not computed here."""
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise fields.wrong("hidden_act", f"{activation!r} is not supported; supported: silu")
    if fields.has("quantization_config"):
        raise fields.wrong("quantization_config", "quantised checkpoints are not supported; GGUF files are")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.wrong("partial_rotary_factor", "only 1.0 is supported")


def _rope_fields(fields: Fields) -> Fields:
    """`rope_parameters` of newer files, `rope_scaling` of older ones; empty where there is neither."""
    for key in ("rope_parameters", "rope_scaling"):
        if fields.has(key):
            value = fields.raw(key)
            if not isinstance(value, dict):
                raise fields.wrong(key, f"must be an object, not {value!r}")
            return Fields(value, f"config.json: {key}")
    return Fields({}, "config.json: rope_parameters")


def _rope_scaling(rope: Fields, max_len: int) -> RopeScaling | None:
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.wrong("partial_rotary_factor", "only 1.0 is supported")
    match rope.text("rope_type", rope.text("type", "default")):
        case "default":
            return None
        case "dynamic":
            # Frequencies change only beyond max_position_embeddings, and the context ends there.
            return None
        case "linear":
            return LinearScaling(_factor(rope))
        case "llama3":
            return Llama3Scaling(
                factor=_factor(rope),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_len=rope.integer("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(rope, max_len)
        case unknown:
            raise rope.wrong("rope_type", f"{unknown!r} is not supported; supported: {', '.join(SUPPORTED_ROPE_TYPES)}")


def _yarn(rope: Fields, max_len: int) -> YarnScaling:
    factor = _factor(rope)
    return YarnScaling(
        factor=factor,
        original_max_len=rope.integer("original_max_position_embeddings", max_len),
        attention_factor=rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        is_truncated=rope.flag("truncate", True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    mscale, mscale_all_dim = rope.raw("mscale"), rope.raw("mscale_all_dim")
    if mscale and mscale_all_dim:
        return yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(factor, rope.number("mscale_all_dim"))
    return yarn_magnitude(factor)


def _factor(rope: Fields) -> float:
    factor = rope.number("factor")
    if factor < 1:
        raise rope.wrong("factor", f"must be at least 1, not {factor}")
    return factor


def _extended_len(max_len: int, scaling: RopeScaling | None) -> int:
    """Files with YaRN may name the context before the extension or after it."""
    if isinstance(scaling, YarnScaling):
        return max(max_len, int(scaling.original_max_len * scaling.factor))
    return max_len


def _sliding_window(fields: Fields, architecture: str) -> int | None:
    """One window for all layers. Raises `ConfigError` where layers differ."""
    if architecture == "LlamaForCausalLM" or not fields.has("sliding_window"):
        return None
    window = fields.integer("sliding_window")
    if window < 1:
        raise fields.wrong("sliding_window", f"must be at least 1, not {window}")
    is_windowed = _windowed_layers(fields) if architecture.startswith("Qwen") else {True}
    if len(is_windowed) > 1:
        raise fields.wrong("max_window_layers", "layers with different attention windows are not supported")
    return window if True in is_windowed else None


def _windowed_layers(fields: Fields) -> set[bool]:
    """Which of the two kinds of layers a Qwen model has."""
    if not fields.flag("use_sliding_window", False):
        return {False}
    layer_types = fields.raw("layer_types")
    if isinstance(layer_types, list):
        return {kind == "sliding_attention" for kind in layer_types}
    first = fields.integer("max_window_layers", 28)
    return {layer >= first for layer in range(fields.integer("num_hidden_layers"))}
