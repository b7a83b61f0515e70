"""config.json: which keys are read, and which are refused by name."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.model.architectures.registry import BY_NAME
from sluiceway.model.config import LinearScaling, Llama3Scaling, YarnScaling
from sluiceway.model.hf_config import (
    HARMLESS,
    REFUSED,
    config_from_json,
    read_directory_config,
    unknown_keys,
)

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}


def config(**changes: Any) -> Any:
    return config_from_json(BASE | changes)


def test_defaults_fill_what_old_files_leave_out() -> None:
    """There are as many key heads as heads, the head size is the quotient, and the RoPE base is the usual one."""
    c = config()
    assert (c.n_kv_heads, c.head_dim, c.rms_eps, c.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert c.rope_scaling is c.sliding_window is None
    assert not (c.is_tied or c.has_qkv_bias or c.has_out_bias or c.has_mlp_bias or c.has_qk_norm)


def test_both_spellings_of_the_rotary_settings_are_read() -> None:
    """They are `rope_scaling` with `type`, and the base outside of it; or `rope_parameters`, which has the base."""
    assert config(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2}).rope_scaling == LinearScaling(2.0)
    new = config(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert new.rope_theta == 5e5 and new.rope_scaling is None


def test_each_scaling_gets_its_numbers() -> None:
    """YaRN extends the context that the file names; the others do not."""
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    assert config(rope_scaling=llama3).rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    yarn = config(rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert yarn.max_model_len == 1024
    assert yarn.rope_scaling == YarnScaling(4.0, 256, 0.1 * math.log(4) + 1)
    scaled = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert config(rope_scaling=scaled).rope_scaling.attention_factor == 1.0
    assert config(rope_scaling={"rope_type": "dynamic", "factor": 4.0}).rope_scaling is None


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("LlamaForCausalLM", (True, True, True, False)),
        ("MistralForCausalLM", (False, False, False, False)),
        ("Qwen2ForCausalLM", (True, False, False, False)),
        ("Qwen3ForCausalLM", (True, True, False, True)),
    ],
)
def test_each_architecture_has_its_own_biases_and_norms(architecture: str, expected: tuple[bool, ...]) -> None:
    """Both settings for biases are on, if the architecture has them."""
    c = config(architectures=[architecture], attention_bias=True, mlp_bias=True, num_key_value_heads=4)
    assert (c.has_qkv_bias, c.has_out_bias, c.has_mlp_bias, c.has_qk_norm) == expected


def test_end_tokens_of_both_files_count() -> None:
    """Each may be one or a list."""
    assert config_from_json(BASE, {"eos_token_id": [7, 2]}).eos_token_ids == (2, 7)
    assert config_from_json(BASE | {"eos_token_id": None}).eos_token_ids == ()


QWEN: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8, "num_key_value_heads": 2}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 8}, None),
        (MISTRAL | {"sliding_window": 8}, 8),
        (MISTRAL | {"sliding_window": None}, None),
        (MISTRAL | {"max_position_embeddings": 8192}, 4096),
        (MISTRAL | {"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, 8),
        (MISTRAL | {"sliding_window": 256}, None),
        ({"layer_types": ["full_attention"] * 2}, None),
        (QWEN, None),
        (QWEN | {"use_sliding_window": True}, None),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 0}, 8),
        (QWEN | {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 8),
        (QWEN | {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        (QWEN | {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 1}, None),
        (QWEN | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, None),
    ],
)
def test_a_window_counts_when_all_layers_have_it(changes: dict[str, Any], window: int | None) -> None:
    """Llama has none; Mistral has one by default; Qwen names the first layer with one, beyond the last by default.

    A window of the whole context is none.
    """
    assert config(**changes).sliding_window == window


BAD: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*supported: LlamaForCausalLM"),
    ({"architectures": None}, "architectures"),
    ({"hidden_act": "gelu"}, "hidden_act.*silu"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_scaling": {"rope_type": "longrope"}}, "longrope.*supported: default, linear"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor: is missing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor: must be at least 1"),
    ({"rope_scaling": "linear"}, "rope_scaling: must be an object"),
    ({"hidden_size": None}, "hidden_size: is missing"),
    ({"num_key_value_heads": 3}, "n_heads"),
    ({"num_attention_heads": 0}, "n_heads"),
    (MISTRAL | {"sliding_window": 0}, "sliding_window"),
    ({"num_key_value_heads": 0}, "n_kv_heads"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types.*different attention windows"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types.*sliding_attention.*None"),
    ({"layer_types": ["linear_attention"] * 2}, "layer_types.*linear_attention.*supported: full_attention"),
    ({"layer_types": ["full_attention"]}, "layer_types.*each of the 2 layers"),
    ({"layer_types": {}}, "layer_types.*each of the 2 layers"),
    (MISTRAL | {"sliding_window": 8, "layer_types": ["full_attention"] * 2}, "layer_types.*full_attention.*8"),
    (QWEN | {"layer_types": ["sliding_attention"] * 2}, "layer_types.*sliding_attention.*None"),
    (QWEN | {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types.*different"),
    ({"model_type": "granite"}, "model_type.*'granite' contradicts the architecture LlamaForCausalLM"),
    ({"architectures": [["x"]]}, "architectures"),
    ({"quantization": {"bits": 4}}, "quantization: quantised"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "mrope_section": [1]}}, "mrope_section: is not supported"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention: is not supported"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 1e7}}, "factor: must be at least 1 and at most"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": -1}}, "beta_fast: must be at least beta_slow"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0}}, "original_max_posi"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": -1, "mscale_all_dim": 1}}, "mscale.*negative"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}},
        "high_freq_factor: must be above low_freq_factor",
    ),
    ({"rope_theta": float("nan")}, "rope_theta: must be a finite number"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps: must be a finite number, not 1000.*\\.\\.\\.$"),
    ({"hidden_size": 2**40}, "hidden_size: must be .* at most 2147483647"),
    ({"num_hidden_layers": 10**9}, "n_layers: must be at most 4096"),
    (
        {
            "max_position_embeddings": 10**400,
            "rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 10**6},
        },
        "max_model_len: must be .* at most 2147483647",
    ),
    ({"vocab_size": True}, "vocab_size: must be a whole number"),
    (QWEN | {"use_sliding_window": True, "max_window_layers": 1}, "different attention windows"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """No setting that changes the numbers is ignored."""
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_changes_the_numbers_is_refused_unless_it_changes_nothing(key: str) -> None:
    """The error names the key. Null and the values of the table are accepted."""
    with pytest.raises(ConfigError, match=rf"config\.json: {key}: .* is not supported"):
        config(**{key: 0.5})
    for value in (None, *REFUSED[key]):
        assert config(**{key: value}) == config()


def test_layers_with_rotary_positions_are_named_by_ones() -> None:
    """Each name of the key is tested. Qwen 3 always has norms of queries and keys."""
    assert config(no_rope_layers=[1, 1]) == config()
    with pytest.raises(ConfigError, match="no_rope_layers"):
        config(no_rope_layers=[1, 0])
    qwen3 = {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2}
    assert config(**qwen3, use_qk_norm=True).has_qk_norm
    with pytest.raises(ConfigError, match="use_qk_norm"):
        config(use_qk_norm=True)


@pytest.mark.parametrize("architecture", BY_NAME)
def test_the_defaults_are_those_of_transformers(architecture: str) -> None:
    """Every key that is read is tested. Every key of transformers is read, or is in the table of harmless keys.

    The end token is no number of the model: without one in the files the tokenizer's own counts, not the class's.
    """
    described = BY_NAME[architecture]
    theirs = configuration_class(architecture)
    assert theirs.model_type == described.model_type
    assert {key: getattr(theirs, key) for key in described.defaults} == described.defaults
    assert theirs.default_theta == config(architectures=[architecture], num_key_value_heads=4).rope_theta
    known = described.defaults.keys() | HARMLESS | {"eos_token_id", "rope_parameters"}
    assert theirs.__annotations__.keys() - known == set()


@pytest.mark.parametrize("architecture", BY_NAME)
def test_what_a_file_leaves_out_is_what_transformers_makes_of_it(architecture: str) -> None:
    """One key at a time is left out of a complete file, or is null if transformers allows that."""
    theirs = configuration_class(architecture)
    nullable = {"sliding_window", "layer_types"}
    nullable |= {"num_key_value_heads"} - ({"num_key_value_heads"} if architecture == "MistralForCausalLM" else set())
    nullable |= {"head_dim"} - ({"head_dim"} if architecture == "Qwen3ForCausalLM" else set())
    whole: dict[str, Any] = {
        "architectures": [architecture],
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "hidden_size": 64,
    }
    cases: list[dict[str, Any]] = [{}, *({key: None} for key in nullable), {"num_key_value_heads": 4}, {"head_dim": 8}]
    for changes in cases:
        file = whole | changes
        ours, reference = config_from_json(file), theirs(**file)
        assert ours.n_kv_heads == reference.num_key_value_heads
        assert ours.head_dim == (getattr(reference, "head_dim", None) or 2)
        window = getattr(reference, "sliding_window", None) if architecture != "LlamaForCausalLM" else None
        assert ours.sliding_window == window
        assert (ours.vocab_size, ours.intermediate_size) == (reference.vocab_size, reference.intermediate_size)
        assert (ours.max_model_len, ours.rms_eps) == (reference.max_position_embeddings, reference.rms_norm_eps)
        assert ours.is_tied == reference.tie_word_embeddings


def configuration_class(architecture: str) -> Any:
    import transformers

    return getattr(transformers, architecture.replace("ForCausalLM", "Config"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}, 256),
        ({"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64}}, 64),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "original_max_position_embeddings": 32}, 32),
        (
            {
                "rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 64},
                "rope_parameters": {"rope_type": "linear", "factor": 3, "rope_theta": 7.0},
                "original_max_position_embeddings": 32,
            },
            32,
        ),
    ],
)
def test_the_context_before_the_extension_is_where_transformers_looks_for_it(
    settings: dict[str, Any], expected: int
) -> None:
    """It is outside the rotary settings, in them, or the context of the file. Older settings come before newer ones."""
    scaling = config(**settings).rope_scaling
    assert scaling.original_max_len == expected
    theirs = configuration_class("LlamaForCausalLM")(**copy.deepcopy(BASE | settings))
    theirs.standardize_rope_params()  # as its rotary layer does before it computes
    reference = theirs.rope_parameters
    assert reference["original_max_position_embeddings"] == expected
    assert scaling.factor == (reference["factor"] or 4)
    assert config(**settings).rope_theta == reference["rope_theta"]


def test_keys_that_are_not_known_are_named_in_the_log(tmp_path: Path) -> None:
    """They are ignored. The log does not name keys whose value has no effect."""
    changes = {
        "my_own_key": 1,
        "a_thing": "x",
        "off": False,
        "none": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    assert unknown_keys(BASE | changes) == ["'a_thing'", "'my_own_key'"]
    assert unknown_keys(BASE | QWEN | {"head_dim": 16}) == [], "read, though Qwen2's class has no such key"
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
    with capture_logs() as lines:
        read_directory_config(tmp_path)
    assert [line["keys"] for line in lines] == ["'a_thing', 'my_own_key'"]
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    with capture_logs() as lines:
        read_directory_config(tmp_path)
    assert lines == []


def test_a_directory_is_read_with_its_generation_settings(tmp_path: Path) -> None:
    """The test reads both files."""
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert read_directory_config(tmp_path).eos_token_ids == (2, 9)


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff"])
def test_an_unreadable_file_is_a_source_error(tmp_path: Path, content: str | None) -> None:
    """The file is missing, cut short, not an object, or not UTF-8."""
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelSourceError, match="config.json"):
        read_directory_config(tmp_path)
