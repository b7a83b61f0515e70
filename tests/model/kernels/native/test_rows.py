"""Norm and SwiGLU are close to those in float64, for every length around whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from support.native import SETS, kernel_set, random_floats

LENGTHS = [1, 15, 16, 17, 64, 100, 576]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n", LENGTHS)
def test_norm_divides_by_the_root_mean_square(name: str, n: int) -> None:
    """The epsilon is inside the root. Nothing is written after the row."""
    x, weight, out = random_floats(n), random_floats(n, seed=1), np.full(n + 1, 7, np.float32)
    kernel_set(name).norm(x.ctypes.data, weight.ctypes.data, 0.01, n, out.ctypes.data)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean() + 0.01) * weight
    np.testing.assert_allclose(out[:n], expected, rtol=1e-5, atol=1e-6)
    assert out[n] == 7


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n", LENGTHS)
def test_swiglu_gates(name: str, n: int) -> None:
    """The result is silu(gate) * up, also where the exponential overflows: far below zero it is 0."""
    gate, up, out = random_floats(n, scale=9), random_floats(n, seed=1), np.full(n + 1, 7, np.float32)
    gate[0] = -200
    gate[-1] = 200 if n > 1 else -200
    kernel_set(name).swiglu(gate.ctypes.data, up.ctypes.data, n, out.ctypes.data)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(out[:n], wide / (1 + np.exp(-wide)) * up, rtol=1e-5, atol=1e-6)
    assert out[n] == 7
