"""The decoder computes what transformers does on small random models: prefill, decode, chunks, and mixed batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from sluiceway.model.linear import has_mkl_linear
from sluiceway.model.load import load_model
from support.tiny_models import (
    PROMPT,
    Stepper,
    loaded,
    reference_logits,
    reference_model,
    require_same_logits_in_any_batch,
    row,
    saved,
)

ROPE = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "one key head": ("Llama", {"num_key_value_heads": 1}),
    "as many key heads as heads": ("Llama", {"num_key_value_heads": 4}),
    "wide heads": ("Llama", {"head_dim": 32}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "window": ("Mistral", {"sliding_window": 40}),
    "qwen2": ("Qwen2", {}),
    "qwen2 window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 150, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    **{f"rope {name}": ("Llama", {"rope_scaling": scaling}) for name, scaling in ROPE.items()},
}


def assert_close(ours: Tensor, reference: Tensor) -> None:
    """The difference is at most a thousandth of the range of the logits."""
    assert (ours - reference).abs().max() < 1e-3 * reference.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers_however_a_prompt_is_cut(tmp_path: Path, name: str) -> None:
    """The prompt is computed whole, in chunks that cross blocks and segments, and token by token."""
    kind, settings = MODELS[name]
    reference = reference_model(kind, **settings)
    stepper = Stepper(loaded(reference, tmp_path))
    expected = reference_logits(reference, PROMPT)

    assert_close(stepper.step(row(PROMPT, 0, 300, 0))[0], expected[-1])
    position = 0
    for n_tokens in (1, 30, 90, 7, 100, 50, 1, 1):
        logits = stepper.step(row(PROMPT, position, n_tokens, 30))
        position += n_tokens
        assert_close(logits[0], expected[position - 1])


LEFT_OUT: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("num_key_value_heads head_dim rms_norm_eps mlp_bias rope_parameters", {"num_key_value_heads": 4}),
    "Mistral": (
        "num_key_value_heads head_dim rope_parameters",
        {"num_attention_heads": 8, "num_key_value_heads": 8, "sliding_window": None},
    ),
    "Qwen2": (
        "num_key_value_heads use_sliding_window layer_types sliding_window",
        {"num_attention_heads": 32, "num_key_value_heads": 32},
    ),
    "Qwen3": ("head_dim attention_bias", {"head_dim": 128}),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_config_json_leaves_out_is_as_in_transformers(tmp_path: Path, kind: str) -> None:
    """The logits are those of transformers for the same directory."""
    import transformers

    names, settings = LEFT_OUT[kind]
    files = saved(reference_model(kind, **settings), tmp_path)
    path = tmp_path / "config.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in names.split()}
    path.write_text(json.dumps(content))
    reference = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(tmp_path)
    logits = Stepper(load_model(files, "float32")).step(row(PROMPT, 0, 300, 0))[0]
    assert_close(logits, reference_logits(reference, PROMPT)[-1])


def test_rows_keep_apart_when_prefill_and_decode_share_a_batch(tmp_path: Path) -> None:
    """The four rows are in different phases, and one of them wants no logits."""
    reference = reference_model()
    stepper = Stepper(loaded(reference, tmp_path))
    prompts = [PROMPT[i : i + n] for i, n in ((0, 40), (40, 150), (3, 17), (100, 129))]
    blocks = (0, 10, 30, 40)
    stepper.step(
        row(prompts[0], 0, 39, blocks[0], samples=False),
        row(prompts[1], 0, 100, blocks[1], samples=False),
        row(prompts[3], 0, 128, blocks[3], samples=False),
    )

    logits = stepper.step(
        row(prompts[0], 39, 1, blocks[0]),
        row(prompts[1], 100, 20, blocks[1], samples=False),
        row(prompts[2], 0, 17, blocks[2]),
        row(prompts[3], 128, 1, blocks[3]),
    )

    assert len(logits) == 3
    for ours, prompt in zip(logits, (prompts[0], prompts[2], prompts[3]), strict=True):
        assert_close(ours, reference_logits(reference, prompt)[-1])


@pytest.mark.skipif(not has_mkl_linear(), reason="only MKL's packed product gives each row the same bits")
@pytest.mark.parametrize("name", ["llama", "one key head", "as many key heads as heads", "window", "qwen3"])
def test_logits_are_equal_in_any_batch_and_in_any_chunks(tmp_path: Path, name: str) -> None:
    """The dtype is float32."""
    kind, settings = MODELS[name]
    model = loaded(reference_model(kind, **settings), tmp_path)
    require_same_logits_in_any_batch(model)


def test_bfloat16_follows_float32(tmp_path: Path) -> None:
    """Each logit is close to that of float32, not equal: the weights have half the bits."""
    reference = reference_model()
    stepper = Stepper(loaded(reference, tmp_path, "bfloat16"))
    ours = stepper.step(row(PROMPT, 0, 200, 0))[0].float()
    expected = reference_logits(reference, PROMPT[:200])[-1]
    assert (ours - expected).abs().max() < 0.05 * expected.abs().max()
