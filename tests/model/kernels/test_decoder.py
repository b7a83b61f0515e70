"""Whole steps in native code are close to transformers: every kind of model, any chunks of a prompt, any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluiceway.config import Dtype
from sluiceway.engine.scheduler.plan import NO_TOKEN
from sluiceway.model.kernels import decoder as native
from sluiceway.model.kernels.decoder import NativeBackend, StepArrays
from support.native import SETS, chosen
from support.tiny_models import (
    PROMPT,
    Stepper,
    loaded,
    reference_logits,
    reference_model,
    require_same_logits_in_any_batch,
    row,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "one key head": ("Llama", {"num_key_value_heads": 1}),
    "wide heads": ("Llama", {"head_dim": 32}),
    "no multiples": ("Llama", {"head_dim": 20, "intermediate_size": 90, "hidden_size": 72, "vocab_size": 163}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "window": ("Mistral", {"sliding_window": 40}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "llama3": ("Llama", {"rope_scaling": LLAMA3}),
    "yarn": ("Llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
}
ERRORS: dict[Dtype, float] = {"bfloat16": 0.05, "int8": 0.15}


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("kind", MODELS)
def test_logits_follow_those_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: Dtype
) -> None:
    """Each logit is close to that of float32, not equal: the weights have half or a quarter of the bits."""
    family, settings = MODELS[kind]
    reference = reference_model(family, **settings)
    with chosen(monkeypatch, "plain"):
        model = loaded(reference, tmp_path, dtype)
    assert isinstance(model.start(1), NativeBackend)
    ours = Stepper(model).step(row(PROMPT, 0, 200, 0))[0]
    expected = reference_logits(reference, PROMPT[:200])[-1]
    assert (ours - expected).abs().max() < ERRORS[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("kind", ["llama", "one key head", "window", "qwen3", "no multiples"])
@pytest.mark.parametrize("name", SETS)
def test_logits_are_equal_in_any_batch_and_in_any_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, dtype: Dtype
) -> None:
    family, settings = MODELS[kind]
    with chosen(monkeypatch, name):
        model = loaded(reference_model(family, **settings), tmp_path, dtype)
    require_same_logits_in_any_batch(model)


@pytest.mark.parametrize("name", SETS)
def test_nan_is_never_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A row of the output matrix that is NaN is ignored. If all logits are NaN, there is no token."""
    reference = reference_model(tie_word_embeddings=False, vocab_size=163)
    prompts = [PROMPT[i : i + 9] for i in range(20)]
    with chosen(monkeypatch, name):
        best = loaded(reference, tmp_path / "whole", "bfloat16").start(50)
        expected = best.compute([row(p, 0, 9, 2 * i) for i, p in enumerate(prompts)], logits_of=range(20)).logits
        with torch.no_grad():
            reference.lm_head.weight[expected[0].argmax()] = float("nan")
        broken = loaded(reference, tmp_path / "broken", "bfloat16").start(50)
        with torch.no_grad():
            reference.get_input_embeddings().weight[7] = float("nan")
        poisoned = loaded(reference, tmp_path / "poisoned", "bfloat16").start(50)
    expected[:, expected[0].argmax()] = -torch.inf
    outcome = broken.compute([row(p, 0, 9, 2 * i) for i, p in enumerate(prompts)], logits_of=[])
    assert outcome.largest.tolist() == expected.argmax(-1).tolist()
    clean = [token for token in PROMPT if token != 7][:9]
    outcome = poisoned.compute([row([7] * 9, 0, 9, 0), row(clean, 0, 9, 2)], logits_of=[])
    alone = broken.compute([row(clean, 0, 9, 2)], logits_of=[])
    assert outcome.largest.tolist() == [NO_TOKEN, *alone.largest.tolist()]


@pytest.mark.parametrize("name", SETS)
def test_the_largest_are_those_of_the_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of equal logits the first counts. The vocabulary fills no whole panel. Logits are returned or not."""
    model_with_ties = reference_model(vocab_size=163)
    with torch.no_grad():
        model_with_ties.lm_head.weight[100:163] = model_with_ties.lm_head.weight[37:100].clone()
    with chosen(monkeypatch, name):
        model = loaded(model_with_ties, tmp_path, "bfloat16")
    rows = [row(PROMPT[i : i + 9], 0, 9, 2 * i) for i in range(40)]
    outcome = model.start(100).compute(rows, logits_of=range(40))
    assert outcome.largest.tolist() == np.argmax(outcome.logits.numpy(), axis=-1).tolist()
    assert max(outcome.largest) < 100
    for some in ([], [0, 7, 33, 39]):
        again = model.start(100).compute(rows, logits_of=some)
        assert torch.equal(again.logits, outcome.logits[some])
        assert again.largest.tolist() == outcome.largest.tolist()


def test_old_contents_of_a_block_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even NaN changes anything."""
    with chosen(monkeypatch, "plain"):
        model = loaded(reference_model(head_dim=32), tmp_path, "bfloat16")
    clean, dirty = model.start(8), model.start(8)
    assert isinstance(dirty, NativeBackend)
    dirty.cache.fill(float("nan"))
    for a, b in ((0, 5), (5, 37), (37, 38)):
        rows = [row(PROMPT, a, b - a, 2)]
        of_clean, of_dirty = (each.compute(rows, logits_of=[0]).logits for each in (clean, dirty))
        assert torch.equal(of_clean, of_dirty)


def test_the_arrays_of_a_step_hold_its_own_entries() -> None:
    """Known tokens and blocks after the step are not in them."""
    growing = row(list(range(100, 140)), 14, 4, 5, samples=False)
    growing.block_ids.append(999)  # type: ignore[attr-defined]
    drafted = row(list(range(48)), 47, 1, 30, drafts=(7, 8))
    arrays = StepArrays.of([growing, row(list(range(50)), 33, 1, 20), drafted])
    assert arrays.tokens.tolist() == [114, 115, 116, 117, 33, 47, 7, 8]
    assert arrays.first.tolist() == [0, 4, 5, 8]
    assert arrays.start.tolist() == [14, 33, 47]
    assert arrays.first_block.tolist() == [0, 2, 5, 9]
    assert arrays.blocks.tolist() == [5, 6, 20, 21, 22, 30, 31, 32, 33]
    assert arrays.sampled.tolist() == [4, 5, 6, 7]


def test_the_size_of_the_cache_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number has two bytes, and heads are padded to whole steps of the kernels."""
    with chosen(monkeypatch, "plain"):
        model = loaded(reference_model(head_dim=20), tmp_path, "int8")
    assert model.start(7).cache_bytes == 2 * 2 * 2 * 7 * 16 * 32 * 2


def test_missing_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error ends this step only, and the engine goes on."""
    with chosen(monkeypatch, "plain"):
        model = loaded(reference_model(), tmp_path, "bfloat16")
    model_pass = model.start(8)
    monkeypatch.setattr(native.NativeDecoder, "_run", lambda *_: -1)
    with pytest.raises(MemoryError):
        model_pass.compute([row(PROMPT, 0, 5, 0)], logits_of=[])
