"""One place for every product with a weight matrix: which kernel computes it, and how its weight is stored for it.

Why packed: a plain `linear` lays its weight out anew in every call, which costs more than the product itself where few
rows share it. And in float32 the plain kernel changes with the number of rows, so that a row's sums are added in
another order alone than in a batch; MKL's packed product gives each row the same bits whatever the others are.

The packed operators are torch's own, used by its compiler for frozen graphs, but not a public interface: `pack` asks
for them and falls back to `torch.nn.functional.linear`, which is right, slower, and not invariant in float32.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

MKL_PACKED_ROWS = 256
"""The number of rows for which MKL packs. Any number may come. With a smaller value, MKL packs very narrow weights in a
way that treats some row counts differently."""

MKL_ROW_TILE = 4
"""Rows are padded to a multiple of this. MKL has special kernels for one row and for a remainder of rows, which add the
products of a row in another order. The choice of kernel depends on the processor and on the number of threads."""


class Linear(Protocol):
    """Compute `x @ weight.T + bias` for x (tokens, inputs): (tokens, outputs)."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """A product on any device, in any dtype. It keeps the weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class MklLinear:
    """A product in float32 on a CPU with MKL. The weight is packed once, and no row affects another one."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, MKL_PACKED_ROWS)
        self._bias = bias
        # The operator wants the unpacked weight for its shape; this one has it without its memory.
        self._shape_only = torch.empty(1).expand(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        n_rows = x.shape[0]
        n_missing = -n_rows % MKL_ROW_TILE
        if n_missing:
            x = functional.pad(x, (0, 0, 0, n_missing))
        out: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self._shape_only, self._bias, n_rows + n_missing)
        return out[:n_rows]


class OneDnnLinear:
    """A product in bfloat16 on a CPU that multiplies it natively. The weight is packed once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Make the product for a weight (outputs, inputs). Packed forms do not keep `weight` itself alive."""
    if weight.device.type == "cpu":
        if weight.dtype == torch.float32 and has_mkl_linear():
            return MklLinear(weight, bias)
        if weight.dtype == torch.bfloat16 and has_onednn_linear():
            return OneDnnLinear(weight, bias)
    return PlainLinear(weight, bias)


def has_mkl_linear() -> bool:
    return torch._C.has_mkl and hasattr(torch.ops.mkl, "_mkl_linear")


def has_onednn_linear() -> bool:
    return (
        torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
