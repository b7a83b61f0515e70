"""Products with packed weights are close to those in float64, and a row has the same bits in any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sluiceway.model.kernels.binding import Kernels, Pool
from sluiceway.model.kernels.packing import PackedProduct, pack_bf16, pack_int8
from support.native import SETS, FloatArray, kernel_set, pools, random_floats, rounded

SHAPES = [(96, 64), (33, 7), (130, 200), (576, 1536)]
ROW_COUNTS = [*range(1, 65), 70, 300]


def multiply(kernels: Kernels, product: PackedProduct, rows: FloatArray, pool: Pool) -> FloatArray:
    """Multiply. Returns (rows, outputs in whole panels)."""
    out = np.empty((len(rows), product.panels.shape[0] * 32), np.float32)
    rows = np.ascontiguousarray(rows)
    assert kernels.multiply(product.struct(), rows.ctypes.data, len(rows), out.ctypes.data, pool) == 0
    return out


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SETS)
def test_bf16_products_equal_the_definition(name: str, shape: tuple[int, int], has_bias: bool) -> None:
    """They are the products of the rounded numbers, with the precision of float32. Padding stays zero."""
    kernels = kernel_set(name)
    rows, weight, bias = random_floats(33, shape[1]), random_floats(*shape, seed=1), random_floats(shape[0], seed=2)
    product = pack_bf16(torch.from_numpy(weight), torch.from_numpy(bias) if has_bias else None)
    expected = rounded(rows) @ rounded(weight).T + (bias if has_bias else 0)
    for pool in pools():
        out = multiply(kernels, product, rows, pool)
        np.testing.assert_allclose(out[:, : shape[0]], expected, rtol=1e-4, atol=1e-4)
        assert not out[:, shape[0] :].any()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SETS)
def test_int8_products_equal_the_definition(name: str, shape: tuple[int, int], has_bias: bool) -> None:
    """Weights have 8 bits and a scale per output; activations 8 bits and a scale per 64 inputs, in tiles 16 and one."""
    kernels = kernel_set(name)
    rows, weight, bias = random_floats(33, shape[1]), random_floats(*shape, seed=1), random_floats(shape[0], seed=2)
    rows[3] = 0
    rows[:, 5] *= 300
    product = pack_int8(torch.from_numpy(weight), torch.from_numpy(bias) if has_bias else None)
    seen = in_groups(rows, shape[1], 127 * 256 + 127) if name == "amx" else in_groups(rows, 64)
    expected = seen @ in_groups(weight, shape[1]).T + (bias if has_bias else 0)
    for pool in pools():
        out = multiply(kernels, product, rows, pool)
        np.testing.assert_allclose(out[:, : shape[0]], expected, rtol=1e-4, atol=2e-3 * np.abs(expected).max())


def in_groups(values: FloatArray, size: int, n_steps: int = 127) -> FloatArray:
    """Round each group of a row to this many steps on each side of zero; the largest number has the last step."""
    padded = np.pad(values.astype(np.float64), ((0, 0), (0, -values.shape[1] % size)))
    groups = padded.reshape(len(values), -1, size)
    scales = np.maximum(np.abs(groups).max(-1, keepdims=True) / n_steps, 1e-300)
    result: FloatArray = (np.round(groups / scales) * scales).reshape(len(values), -1)[:, : values.shape[1]]
    return result


@pytest.mark.parametrize("shape", [(130, 200), (96, 1536)])
@pytest.mark.parametrize("name", SETS)
def test_a_row_has_the_same_bits_in_any_batch(name: str, shape: tuple[int, int]) -> None:
    """It has them in bf16 and int8, for any number of rows, any place of the row, and any number of threads."""
    kernels = kernel_set(name)
    rows, weight = random_floats(300, shape[1]), torch.from_numpy(random_floats(*shape, seed=1))
    for product in (pack_bf16(weight), pack_int8(weight)):
        whole = multiply(kernels, product, rows, pools()[0])
        for n in ROW_COUNTS:
            for pool in pools():
                assert np.array_equal(multiply(kernels, product, rows[-n:], pool), whole[-n:]), f"{n} rows"
