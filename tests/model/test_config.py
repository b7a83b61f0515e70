"""The numbers of a model: which are impossible, and what follows from them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway.model.config import ModelConfig, yarn_magnitude

VALUES: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "n_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "n_heads": 8,
    "n_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_model_len": 256,
    "rms_eps": 1e-5,
    "rope_theta": 10_000.0,
}


def test_what_follows_from_the_numbers() -> None:
    """The query heads per key head; and the numbers of a token in the cache: 2 x layers x key heads x head size."""
    config = ModelConfig(**VALUES)
    assert config.group_size == 4
    assert config.kv_token_elements == 2 * 3 * 2 * 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_layers", 0),
        ("vocab_size", -1),
        ("max_model_len", 0),
        ("n_heads", 7),
        ("head_dim", 15),
        ("rms_eps", 0.0),
        ("rms_eps", math.nan),
        ("rope_theta", 1.0),
    ],
)
def test_an_impossible_number_is_refused_by_name(field: str, value: float) -> None:
    """The error comes before any tensor is read."""
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**(VALUES | {field: value}))
    assert caught.value.field == field


def test_yarn_magnitude_grows_with_the_logarithm() -> None:
    """It is 1 if the context is not extended."""
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == 1.0
    assert yarn_magnitude(math.e, 2.0) == pytest.approx(1.2)
