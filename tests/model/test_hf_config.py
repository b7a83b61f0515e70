"""config.json: what is understood, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.model.config import LinearScaling, Llama3Scaling, YarnScaling
from sluiceway.model.hf_config import config_from_json, read_directory_config

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
    """As many key heads as heads, head size by division, the classic RoPE base."""
    c = config()
    assert (c.n_kv_heads, c.head_dim, c.rms_eps, c.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert c.rope_scaling is c.sliding_window is None
    assert not (c.is_tied or c.has_qkv_bias or c.has_out_bias or c.has_mlp_bias or c.has_qk_norm)


def test_both_spellings_of_the_rotary_settings_are_read() -> None:
    """`rope_scaling` with `type` and a base beside it; `rope_parameters` with the base in it."""
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
    """With both bias settings on, as far as the architecture knows them."""
    c = config(architectures=[architecture], attention_bias=True, mlp_bias=True)
    assert (c.has_qkv_bias, c.has_out_bias, c.has_mlp_bias, c.has_qk_norm) == expected


def test_end_tokens_of_both_files_count() -> None:
    """Each may be one or a list."""
    assert config_from_json(BASE, {"eos_token_id": [7, 2]}).eos_token_ids == (2, 7)
    assert config_from_json(BASE | {"eos_token_id": None}).eos_token_ids == ()


QWEN: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 8}, None),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, 8),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        (QWEN, None),
        (QWEN | {"use_sliding_window": True}, None),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 0}, 8),
        (QWEN | {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 8),
    ],
)
def test_a_window_counts_when_all_layers_have_it(changes: dict[str, Any], window: int | None) -> None:
    """Llama has none; Qwen names the first layer with one, beyond the last by default."""
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
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
    (QWEN | {"use_sliding_window": True, "max_window_layers": 1}, "different attention windows"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """Nothing that changes the numbers is passed over in silence."""
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_a_directory_is_read_with_its_generation_settings(tmp_path: Path) -> None:
    """Both files."""
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert read_directory_config(tmp_path).eos_token_ids == (2, 9)


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff"])
def test_an_unreadable_file_is_a_source_error(tmp_path: Path, content: str | None) -> None:
    """Absent, cut short, no object, not UTF-8."""
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelSourceError, match="config.json"):
        read_directory_config(tmp_path)
