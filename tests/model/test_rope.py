"""The frequencies of each scaling equal those of transformers; and the rotation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sluiceway.model.config import ModelConfig
from sluiceway.model.hf_config import config_from_json
from sluiceway.model.rope import Rope, inverse_frequencies, rotate

CPU = torch.device("cpu")

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "yarn untruncated": {"factor": 16.0, "original_max_position_embeddings": 128, "truncate": False},
}


def config(name: str) -> ModelConfig:
    scaling = {"rope_type": name.split()[0], "rope_theta": 5000.0} | SCALINGS[name]
    return config_from_json(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vocab_size": 10,
            "max_position_embeddings": 512,
            "rope_parameters": scaling,
        }
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_those_of_transformers(name: str) -> None:
    """So does the magnitude that YaRN gives to cosines and sines."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": name.split()[0], "rope_theta": 5000.0} | SCALINGS[name]
    reference = LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=512, rope_parameters=parameters)
    )
    ours = config(name)
    torch.testing.assert_close(
        inverse_frequencies(32, ours.rope_theta, ours.rope_scaling), reference.inv_freq, rtol=1e-5, atol=0
    )
    positions = torch.tensor([0, 1, 77, 500])
    cosines, sines = Rope(ours, CPU, torch.float32).angles(positions)
    expected_cosines, expected_sines = reference(torch.zeros(1, dtype=torch.float32), positions[None])
    torch.testing.assert_close(cosines[:, 0], expected_cosines[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sines[:, 0], expected_sines[0], rtol=1e-4, atol=1e-4)


def test_a_table_of_divisors_lowers_the_frequencies() -> None:
    """GGUF files of Llama 3 have such a table."""
    divisors = torch.linspace(1, 8, 16)
    cosines, _ = Rope(config("default"), CPU, torch.float32, divisors).angles(torch.tensor([3]))
    expected = (3 * inverse_frequencies(32, 5000.0, None) / divisors).cos()
    torch.testing.assert_close(cosines[0, 0, :16], expected)


def test_rotation_turns_halves_and_keeps_lengths() -> None:
    """A quarter turn moves dimension i to i + head_dim / 2."""
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    quarter = rotate(x, torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
    assert quarter.tolist() == [[[-3.0, -4.0, 1.0, 2.0]]]


def test_scores_depend_on_the_distance_alone() -> None:
    """Rotary positions exist for this."""
    rope = Rope(config("default"), CPU, torch.float32)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 32, generator=generator)

    def score(query_at: int, key_at: int) -> float:
        turned = [rotate(x, *rope.angles(torch.tensor([at]))) for x, at in ((q, query_at), (k, key_at))]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
