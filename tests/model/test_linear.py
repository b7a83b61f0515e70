"""Products with a weight are right in every format, and a row in float32 has the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from sluiceway.model import linear
from sluiceway.model.linear import MklLinear, OneDnnLinear, PlainLinear, has_mkl_linear, has_onednn_linear, pack

SHAPES = [(96, 64), (128, 64), (576, 1536), (960, 576), (17, 33)]
ROW_COUNTS = [*range(1, 65), 100, 128]


def tensors(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, weight, bias."""
    generator = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(128, shape[1], generator=generator), torch.randn(shape, generator=generator) * 0.05
    return rows.to(dtype), weight.to(dtype), torch.randn(shape[0], generator=generator).to(dtype)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_the_definition(shape: tuple[int, int], dtype: torch.dtype, has_bias: bool) -> None:
    """The definition is computed in float64; the error is at most that of the dtype."""
    rows, weight, bias = tensors(shape, dtype)
    product = pack(weight, bias if has_bias else None)
    expected = rows.double() @ weight.double().T + (bias.double() if has_bias else 0)
    error = 1e-5 if dtype == torch.float32 else 1e-2
    with torch.inference_mode():
        torch.testing.assert_close(product(rows).double(), expected, rtol=error, atol=error * 3)


@pytest.mark.skipif(not has_mkl_linear(), reason="this torch has no MKL")
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_float32_row_has_the_same_bits_in_any_batch(shape: tuple[int, int], n_threads: int) -> None:
    """It has them for any number of rows, any place of the row, and any number of threads."""
    rows, weight, _ = tensors(shape, torch.float32)
    product = pack(weight)
    n_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with torch.inference_mode():
            whole = product(rows)
            for n in ROW_COUNTS:
                for first in (0, 1, 128 - n):
                    part = rows[first : first + n].contiguous()
                    assert torch.equal(product(part), whole[first : first + n]), f"{n} rows from row {first}"
    finally:
        torch.set_num_threads(n_before)


def test_a_packed_weight_no_longer_needs_the_original() -> None:
    """Overwriting the weight after packing changes no result."""
    rows, weight, _ = tensors((96, 64), torch.float32)
    product = pack(weight)
    if isinstance(product, PlainLinear):
        pytest.skip("nothing is packed here")
    before = product(rows)
    weight.zero_()
    assert torch.equal(product(rows), before)


def test_the_format_follows_dtype_and_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight is packed if torch can do that, and plain otherwise."""
    _, weight, _ = tensors((96, 64), torch.float32)
    assert isinstance(pack(weight), MklLinear if has_mkl_linear() else PlainLinear)
    assert isinstance(pack(weight.bfloat16()), OneDnnLinear if has_onednn_linear() else PlainLinear)
    assert isinstance(pack(weight.double()), PlainLinear)
    monkeypatch.setattr(linear, "has_mkl_linear", lambda: False)
    monkeypatch.setattr(linear, "has_onednn_linear", lambda: False)
    assert isinstance(pack(weight), PlainLinear)
    assert isinstance(pack(weight.bfloat16()), PlainLinear)
