"""The kernels sample the same tokens as numpy for the same random numbers, except where rounding decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sluiceway.engine.scheduler.plan import NO_TOKEN
from sluiceway.model import sampler
from sluiceway.model.kernels.sampling import sample_natively
from sluiceway.types import SamplingParams
from support.native import SETS, kernel_set, pools, random_floats
from support.tiny_models import row

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "a large top_k": {"top_k": 900, "top_p": 0.999},
}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("name", SETS)
def test_tokens_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, name: str, filters: str) -> None:
    """The test has 300 random numbers, many equal logits, and a vocabulary that fills no whole block."""
    kernels = kernel_set(name)
    logits = np.round(random_floats(300, 1001, scale=2), 1)
    settings = [SamplingParams(**({"temperature": 0.9} | FILTERS[filters]))] * 300
    rows = [row([0] * 5, 4, 1, 0, sampling=each, seed=seed) for seed, each in enumerate(settings)]
    uniforms = sampler.uniform(range(300), [5] * 300)
    monkeypatch.setattr(sampler, "best_kernels", lambda: None)
    expected = sampler.sample_rows(list(logits.copy()), rows)
    for pool in pools():
        tokens = sample_natively(kernels, pool, list(logits), settings, uniforms)
        assert (tokens == expected).sum() >= 299


@pytest.mark.parametrize("values", ["equal", "flat", "steep"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("name", SETS)
def test_tokens_are_those_of_numpy_in_a_large_vocabulary(
    monkeypatch: pytest.MonkeyPatch, name: str, filters: str, values: str
) -> None:
    """A filter cuts among thousands of equal weights, among different ones, or among the first few."""
    logits = {"equal": np.zeros((8, 20_003), np.float32), "flat": random_floats(8, 20_003)}.get(
        values, random_floats(8, 20_003, scale=9)
    )
    settings = [SamplingParams(**FILTERS[filters])] * 8
    rows = [row([0] * 5, 4, 1, 0, sampling=each, seed=seed) for seed, each in enumerate(settings)]
    monkeypatch.setattr(sampler, "best_kernels", lambda: None)
    expected = sampler.sample_rows(list(logits.copy()), rows)
    tokens = sample_natively(kernel_set(name), pools()[0], list(logits), settings, sampler.uniform(range(8), [5] * 8))
    assert (tokens == expected).sum() >= 7


@pytest.mark.parametrize("name", SETS)
def test_logits_stay_as_they_are(name: str) -> None:
    """The kernels sample from their own copy."""
    logits = random_floats(2, 600)
    before = logits.copy()
    sample_natively(kernel_set(name), pools()[0], list(logits), [SamplingParams(top_k=3)] * 2, np.array([0.1, 0.9]))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("name", SETS)
def test_no_token_is_sampled_if_none_is_possible(name: str) -> None:
    """NaN and minus infinity are impossible. The other row of the batch gets its token."""
    logits = np.full((2, 600), np.nan, np.float32)
    logits[0, ::3] = -np.inf
    logits[1, 77] = -5
    tokens = sample_natively(kernel_set(name), pools()[1], list(logits), [SamplingParams()] * 2, np.array([0.1, 0.9]))
    assert tokens.tolist() == [NO_TOKEN, 77]


def test_missing_memory_is_an_error() -> None:
    """The kernels report that they found no memory."""

    class Exhausted:
        def sample(self, *_: object) -> int:
            return -1

    with pytest.raises(MemoryError):
        sample_natively(Exhausted(), pools()[0], list(random_floats(1, 9)), [SamplingParams()], np.array([0.5]))  # type: ignore[arg-type]
