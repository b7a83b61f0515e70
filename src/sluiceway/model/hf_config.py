"""Reads config.json and generation_config.json of a model directory. Imports no torch.

The reference is transformers: a key that the file lacks has the default of its configuration class. A key is served, or
it has no effect on the numbers, or it is refused if its value changes them. The log names all other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from sluiceway.model.architectures.architecture import Architecture
from sluiceway.model.architectures.registry import BY_NAME
from sluiceway.model.config import (
    MAX_ROPE_FACTOR,
    MAX_SIZE,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
    yarn_magnitude,
)
from sluiceway.model.fields import Fields, shown
from sluiceway.model_files import read_json_object

ROPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
"""The rotary types that are served, and the keys of each besides its type, its base and `partial_rotary_factor`."""
SUPPORTED_ROPE_TYPES = tuple(ROPE_KEYS)

_ROPE_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_ACTIVATIONS = ("silu", "swish")

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # Factors and caps (Granite, Gemma, MiniCPM, Cohere and others).
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "embedding_scale": (1,),
    "residual_scale": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "dim_model_base": (),
    "scale_embedding": (False,),
    "mup_enabled": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_softcapping": (),
    "logits_soft_cap": (),
    "attn_scale": (),
    "attention_scale": (),
    "query_pre_attn_scalar": (),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "attn_temperature_tuning": (False, 0),
    "swiglu_limit": (),
    "swiglu_alpha": (),
    "clip_qkv": (),
    # Positions.
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "nope_layer_interval": (0,),
    "no_rope": (False,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_traditional": (False,),
    "rope_ratio": (1,),
    "rotary_pct": (1,),
    "rotary_percent": (1,),
    "rotary_dim": (),
    "rope_local_base_freq": (),
    "local_rope_theta": (),
    "global_rope_theta": (),
    "alibi": (False,),
    "use_alibi": (False,),
    "position_embedding_type": ("rope", "rotary"),
    # What a token sees.
    "use_sliding_window": (False,),
    "attention_chunk_size": (),
    "sliding_window_pattern": (),
    "interleaved_sliding_window": (),
    "global_attn_every_n_layers": (),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "attention_sink": (False,),
    "use_attention_sinks": (False,),
    # Other layers.
    "qk_norm": (False,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "use_qk_layernorm": (False,),
    "norm_type": ("rmsnorm", "rms_norm", "RMSNorm"),
    "use_parallel_residual": (False,),
    "parallel_residual": (False,),
    "parallel_attn": (False,),
    "hidden_activation": _ACTIVATIONS,
    "activation_function": _ACTIVATIONS,
    "mlp_hidden_act": _ACTIVATIONS,
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_key_value_heads_per_layer": (),
    "num_attention_heads_per_layer": (),
    "block_configs": (),
    "per_layer_config": ({},),
    "num_kv_shared_layers": (0,),
    "use_cla": (False,),
    "total_ut_steps": (1,),
    "pruned_heads": ({},),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}
"""Keys that change what is computed, with the values at which they do not; null is always such a value."""

HARMLESS = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attention_dropout",
        "attn_implementation", "attn_pdrop", "auto_map", "begin_suppress_tokens", "bos_token_id",
        "chunk_size_feed_forward", "decoder_start_token_id", "do_sample", "dtype", "embd_pdrop", "finetuning_task",
        "forced_bos_token_id", "forced_eos_token_id", "hidden_dropout", "hidden_dropout_prob", "id2label",
        "initializer_range", "is_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "max_length",
        "max_seq_len", "max_sequence_length", "min_length", "model_max_length", "name", "output_attentions",
        "output_hidden_states", "pad_token_id", "prefix", "pretraining_tp", "problem_type", "resid_pdrop",
        "return_dict", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tokenizer_class",
        "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
        "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_return_dict",
    }
)  # fmt: skip
"""Keys without an effect on the numbers: of training, names, and settings of other programs."""

_READ_ELSEWHERE = frozenset(
    {
        "architectures",
        "model_type",
        "eos_token_id",
        "head_dim",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "layer_types",
    }
)


def read_directory_config(directory: Path) -> ModelConfig:
    """Read the configuration of a directory. Raises `ModelSourceError` (not readable) or `ModelConfigError`."""
    config, generation = read_json_object(directory / "config.json"), directory / "generation_config.json"
    model = config_from_json(config, read_json_object(generation) if generation.exists() else None)
    if unknown := unknown_keys(config):
        log = structlog.get_logger("model")
        log.warning("config.json has keys that are not known: they are ignored", keys=", ".join(unknown))
    return model


def config_from_json(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Make the configuration. The end tokens of both files count: some models name the end of a turn in one only."""
    architecture = _architecture(config)
    fields = Fields({**architecture.defaults, **config}, "config.json")
    _refuse_unsupported(fields, architecture)
    rope = _rope_fields(fields)
    max_len = fields.integer("max_position_embeddings")
    scaling = _rope_scaling(rope, fields, max_len)
    model_len = _extended_len(max_len, scaling)
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    has_attention_bias = "attention_bias" in architecture.defaults and fields.flag("attention_bias")
    eos = fields.integers("eos_token_id") + Fields(generation or {}, "generation_config.json").integers("eos_token_id")
    return ModelConfig(
        architecture=architecture.name,
        n_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", n_heads),
        head_dim=fields.integer("head_dim", hidden_size // max(n_heads, 1)),
        vocab_size=fields.integer("vocab_size"),
        max_model_len=model_len,
        rms_eps=fields.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10_000.0)),
        rope_scaling=scaling,
        sliding_window=_sliding_window(fields, architecture, model_len),
        is_tied=fields.flag("tie_word_embeddings"),
        has_qkv_bias=architecture.has_qkv_bias or has_attention_bias,
        has_out_bias=has_attention_bias,
        has_mlp_bias="mlp_bias" in architecture.defaults and fields.flag("mlp_bias"),
        has_qk_norm=architecture.has_qk_norm,
        eos_token_ids=tuple(sorted(set(eos))),
    )


def unknown_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that are neither served, nor refused, nor harmless. A key that is null or false has no effect."""
    known = _architecture(config).defaults.keys() | REFUSED.keys() | HARMLESS | _READ_ELSEWHERE
    return sorted(shown(key) for key, value in config.items() if key not in known and value not in (None, False))


def _architecture(config: Mapping[str, Any]) -> Architecture:
    fields = Fields(config, "config.json")
    names = fields.raw("architectures")
    name = names[0] if isinstance(names, list) and names else None
    architecture = BY_NAME.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise fields.wrong("architectures", f"{shown(name)} is not supported; supported: {', '.join(BY_NAME)}")
    if (model_type := fields.text("model_type", architecture.model_type)) != architecture.model_type:
        raise fields.wrong("model_type", f"{shown(model_type)} contradicts the architecture {name}")
    return architecture


def _refuse_unsupported(fields: Fields, architecture: Architecture) -> None:
    """Refuse settings that change the numbers and are not computed here."""
    activation = fields.text("hidden_act")
    if activation not in _ACTIVATIONS:
        raise fields.wrong("hidden_act", f"{shown(activation)} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    for key in ("quantization_config", "quantization", "compression_config"):
        if fields.has(key):
            raise fields.wrong(key, "quantised checkpoints are not supported; GGUF files are")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.wrong("partial_rotary_factor", "only 1.0 is supported")
    for key, neutral in REFUSED.items():
        value = fields.raw(key)
        if key in architecture.defaults or value is None or value in neutral or _rotates_all(key, value):
            continue
        if key in ("qk_norm", "use_qk_norm") and architecture.has_qk_norm and value is True:
            continue
        served = f"; only {' or '.join(map(shown, neutral))} is" if neutral else ""
        raise fields.wrong(key, f"{shown(value)} is not supported{served}")


def _rotates_all(key: str, value: Any) -> bool:
    """True if all layers have rotary positions: `no_rope_layers` has a 1 for each of these, in spite of its name."""
    return key == "no_rope_layers" and isinstance(value, list) and all(entry == 1 for entry in value)


def _rope_fields(fields: Fields) -> Fields:
    """`rope_scaling` of older files if it is not empty, else `rope_parameters`; empty if there is neither."""
    for key in ("rope_scaling", "rope_parameters"):
        value = fields.raw(key)
        if value is not None and not isinstance(value, dict):
            raise fields.wrong(key, f"must be an object, not {shown(value)}")
        if value:
            return Fields(value, f"config.json: {key}")
    return Fields({}, "config.json: rope_parameters")


def _rope_scaling(rope: Fields, fields: Fields, max_len: int) -> RopeScaling | None:
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.wrong("partial_rotary_factor", "only 1.0 is supported")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in ROPE_KEYS:
        raise rope.wrong("rope_type", f"{shown(kind)} is not supported; supported: {', '.join(SUPPORTED_ROPE_TYPES)}")
    known = {*_ROPE_COMMON, *(key for keys in ROPE_KEYS.values() for key in keys)}
    for key in rope.keys():
        if rope.has(key) and key not in known:
            raise rope.wrong(key, "is not supported")
    match kind:
        case "linear":
            return LinearScaling(_factor(rope))
        case "llama3":
            return _llama3(rope, fields, max_len)
        case "yarn":
            return _yarn(rope, fields, max_len)
        case _:
            # Of "dynamic" the frequencies change only beyond max_position_embeddings, and the context ends there.
            return None


def _original_len(rope: Fields, fields: Fields, max_len: int) -> int:
    """The context before the extension. A key of the file counts more than one of the rotary settings."""
    key = "original_max_position_embeddings"
    length = fields.integer(key, rope.integer(key, max_len))
    if not 1 <= length <= MAX_SIZE:
        raise rope.wrong(key, f"must be at least 1 and at most {MAX_SIZE}, not {length}")
    return length


def _llama3(rope: Fields, fields: Fields, max_len: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not 0 < low < high:
        raise rope.wrong("high_freq_factor", f"must be above low_freq_factor, which must be positive: {high}, {low}")
    return Llama3Scaling(
        factor=_factor(rope),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_len=_original_len(rope, fields, max_len),
    )


def _yarn(rope: Fields, fields: Fields, max_len: int) -> YarnScaling:
    original_len = _original_len(rope, fields, max_len)
    factor = _factor(rope, default=min(max_len, MAX_SIZE) / original_len)
    # Zero stands for the default, as in transformers.
    beta_fast, beta_slow = rope.number("beta_fast", 32.0) or 32.0, rope.number("beta_slow", 1.0) or 1.0
    if not 0 < beta_slow <= beta_fast:
        raise rope.wrong("beta_fast", f"must be at least beta_slow, which must be positive: {beta_fast}, {beta_slow}")
    return YarnScaling(
        factor=factor,
        original_max_len=original_len,
        attention_factor=rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        is_truncated=rope.flag("truncate", True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    mscale, mscale_all_dim = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if min(mscale, mscale_all_dim) < 0:
        raise rope.wrong("mscale", "and mscale_all_dim must not be negative")
    if mscale and mscale_all_dim:
        return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
    return yarn_magnitude(factor)


def _factor(rope: Fields, default: float | None = None) -> float:
    factor = rope.number("factor", default)
    if not 1 <= factor <= MAX_ROPE_FACTOR:
        raise rope.wrong("factor", f"must be at least 1 and at most {MAX_ROPE_FACTOR:g}, not {factor:g}")
    return factor


def _extended_len(max_len: int, scaling: RopeScaling | None) -> int:
    """The extended context: files with YaRN name the context before the extension, or after it."""
    if isinstance(scaling, YarnScaling):
        return max(max_len, int(scaling.original_max_len * scaling.factor))
    return max_len


def _sliding_window(fields: Fields, architecture: Architecture, model_len: int) -> int | None:
    """One window for all layers. Raises `ModelConfigError` where layers differ, or the file contradicts itself."""
    kinds = _layer_kinds(fields)
    known = architecture.defaults
    window = fields.integer("sliding_window") if "sliding_window" in known and fields.has("sliding_window") else None
    if "use_sliding_window" in known and not fields.flag("use_sliding_window"):
        window = None
    if "max_window_layers" in known:
        kinds = kinds or _kinds_by_number(fields, window)
    if window is not None and window < 1:
        raise fields.wrong("sliding_window", f"must be at least 1, not {window}")
    if window is not None and window >= model_len:
        return None  # every token sees all before it, whatever its layer
    if len(kinds) > 1:
        key = "layer_types" if fields.has("layer_types") else "max_window_layers"
        raise fields.wrong(key, "layers with different attention windows are not supported")
    if "layer_types" in known and kinds == {"full_attention"}:
        return None
    if kinds and kinds != {"full_attention" if window is None else "sliding_attention"}:
        raise fields.wrong("layer_types", f"says {kinds.pop()}, and the window of attention is {window}")
    return window


def _layer_kinds(fields: Fields) -> set[str]:
    """The kinds of attention in `layer_types`; empty if the key is absent."""
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        return set()
    n_layers = fields.integer("num_hidden_layers")
    if not isinstance(layer_types, list) or len(layer_types) != n_layers:
        raise fields.wrong("layer_types", f"must be a list with an entry for each of the {n_layers} layers")
    for kind in layer_types:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.wrong(
                "layer_types", f"{shown(kind)} is not supported; supported: full_attention, sliding_attention"
            )
    return set(layer_types)


def _kinds_by_number(fields: Fields, window: int | None) -> set[str]:
    """Without `layer_types`, `max_window_layers` names the first layer with a window."""
    if window is None:
        return {"full_attention"}
    n_full = min(max(fields.integer("max_window_layers"), 0), fields.integer("num_hidden_layers"))
    n_windowed = fields.integer("num_hidden_layers") - n_full
    return {kind for kind, n in (("full_attention", n_full), ("sliding_attention", n_windowed)) if n > 0}
