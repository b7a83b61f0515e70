"""GGUF metadata: which keys are read, and which are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway.model.config import LinearScaling, YarnScaling
from sluiceway.model.gguf_config import REFUSED, config_from_metadata
from sluiceway.tokenizer.text.gguf_metadata import SkippedArray

BASE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 2,
}
SHAPES = {"token_embd.weight": (100, 64)}


def config(shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> Any:
    """The arguments are keys without `llama.`, with double underscores in place of dots."""
    named = {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    return config_from_metadata(BASE | named, SHAPES | (shapes or {}))


def test_defaults_fill_what_the_file_leaves_out() -> None:
    """The vocabulary is as large as the embedding; a file without output matrix is tied."""
    c = config()
    assert (c.n_kv_heads, c.head_dim, c.vocab_size, c.rope_theta) == (4, 16, 100, 10_000.0)
    assert c.is_tied and c.rope_scaling is c.sliding_window is None
    assert c.eos_token_ids == (2,)


def test_tensors_decide_about_biases_norms_and_the_head() -> None:
    """No key of the metadata has these facts."""
    names = ("output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_down.bias")
    c = config(dict.fromkeys((*names, "blk.0.attn_q_norm.weight"), (1,)))
    assert not c.is_tied
    assert c.has_qkv_bias and c.has_out_bias and c.has_mlp_bias and c.has_qk_norm


def test_each_end_token_counts() -> None:
    """They are the end of the text and the end of a turn."""
    metadata = BASE | {"tokenizer.ggml.eot_token_id": 7}
    assert config_from_metadata(metadata, SHAPES).eos_token_ids == (2, 7)


def test_each_scaling_gets_its_numbers() -> None:
    """The old key for linear scaling is read too."""
    assert config(rope__scaling__type="none", rope__scaling__factor=3.0).rope_scaling is None
    assert config(rope__scaling__type="linear", rope__scaling__factor=3.0).rope_scaling == LinearScaling(3.0)
    assert config(rope__scale_linear=2.0).rope_scaling == LinearScaling(2.0)
    yarn = config(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=64)
    assert yarn.rope_scaling == YarnScaling(4.0, 64, 0.1 * math.log(4) + 1)


def test_heads_and_window_are_read() -> None:
    """The head size need not be the embedding length divided by the number of heads."""
    c = config(attention__key_length=32, attention__value_length=32, attention__sliding_window=8)
    assert (c.head_dim, c.sliding_window) == (32, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope__scaling__type": "longrope"}, "longrope.*supported: none, linear, yarn"),
        ({"rope__dimension_count": 8}, r"rope\.dimension_count"),
        ({"attention__value_length": 8}, r"attention\.value_length"),
        ({"expert_count": 8}, "expert_count"),
        ({"logit_scale": 2.0}, "logit_scale"),
        ({"block_count": None}, "block_count: is missing"),
        ({"attention__head_count": [4, 4]}, "head_count"),
        ({"vocab_size": 99}, r"llama\.vocab_size: is 99, and token_embd\.weight has 100 rows"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 0.0}, r"scaling\.factor: must be at least 1"),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 1e9},
            r"scaling\.factor: must be .* at most 1e\+06",
        ),
        ({"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 0}, "original_context_length"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """Nothing that would change what is computed is ignored."""
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_changes_the_numbers_is_refused_unless_its_value_is_neutral(key: str) -> None:
    """The error names the key. `REFUSED` has the neutral values."""
    with pytest.raises(ConfigError, match=rf"llama\.{key}: .* is not supported"):
        config_from_metadata(BASE | {f"llama.{key}": 7.5}, SHAPES)
    for value in REFUSED[key]:
        assert config_from_metadata(BASE | {f"llama.{key}": value}, SHAPES) == config()


@pytest.mark.parametrize("tokens", [SkippedArray(101), ["a"] * 101])
def test_more_tokens_than_rows_of_the_embedding_are_refused(tokens: Any) -> None:
    """An id above the last row would have no embedding. Fewer tokens are the usual padding."""
    metadata = BASE | {"tokenizer.ggml.tokens": tokens}
    with pytest.raises(ConfigError, match="tokens: has 101 entries, and token_embd.weight 100 rows"):
        config_from_metadata(metadata, SHAPES)
    assert config_from_metadata(metadata, {"token_embd.weight": (128, 64)}).vocab_size == 128


def test_an_unknown_architecture_is_refused_by_name() -> None:
    """The error names the known architectures."""
    with pytest.raises(ConfigError, match=r"'gemma3'.*supported: llama, qwen2, qwen3"):
        config_from_metadata(BASE | {"general.architecture": "gemma3"}, SHAPES)


def test_a_file_without_embedding_is_refused() -> None:
    """Such a file holds a vocabulary, but no model."""
    with pytest.raises(ConfigError, match=r"token_embd\.weight"):
        config_from_metadata(BASE, {})
