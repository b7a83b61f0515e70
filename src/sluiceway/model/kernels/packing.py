"""Packs weights for the kernels: panels of 32 outputs, in bf16, or in int8 with one scale for each output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sluiceway.model.kernels import binding

PANEL = 32
_HALF = PANEL // 2
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """A packed weight. `struct` points into the tensors, which this object keeps alive."""

    panels: Tensor
    scales: Tensor | None
    weight_sums: Tensor | None
    bias: Tensor | None
    n_inputs: int

    def struct(self) -> binding.Product:
        n_outputs = self.panels.shape[0] * PANEL
        is_int8 = self.scales is not None
        return binding.Product(
            *(address(tensor) for tensor in (self.panels, self.scales, self.weight_sums, self.bias)),
            n_outputs,
            self.n_inputs,
            is_int8,
        )


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def pack_bf16(weight: Tensor, bias: Tensor | None = None) -> PackedProduct:
    """Pack a weight (outputs, inputs) of any float dtype in bf16."""
    padded = _padded(weight.to(torch.bfloat16), _LINE_BYTES // 2)
    return PackedProduct(_panels(padded, 2), None, None, _padded_bias(bias, padded.shape[0]), weight.shape[1])


def pack_int8(weight: Tensor, bias: Tensor | None = None) -> PackedProduct:
    """Pack a weight in int8. Each output is scaled so that its largest weight is 127."""
    padded = _padded(weight.float(), _LINE_BYTES)
    low, high = padded.aminmax(dim=1)
    scales = torch.maximum(-low, high) / 127
    quantised = (padded / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round_().to(torch.int8)
    by_group = quantised.view(-1, PANEL, padded.shape[1] // _LINE_BYTES, _LINE_BYTES)
    sums = by_group.sum(dim=-1, dtype=torch.int16).transpose(1, 2).contiguous()
    return PackedProduct(_panels(quantised, 4), scales, sums, _padded_bias(bias, padded.shape[0]), weight.shape[1])


def interleave(gate_up: Tensor) -> Tensor:
    """Reorder rows (all gates, then all ups) to 16 gates, 16 ups, and so on, padded with zeros."""
    gate, up = (functional.pad(half, _padding(half, _HALF)) for half in gate_up.chunk(2))
    by_half = (-1, 1, _HALF, *gate_up.shape[1:])
    return torch.cat((gate.view(by_half), up.view(by_half)), dim=1).flatten(0, 2)


def _padding(rows: Tensor, multiple: int) -> tuple[int, ...]:
    missing = -rows.shape[0] % multiple
    return (0,) * (2 * rows.ndim - 1) + (missing,)


def _padded(weight: Tensor, input_multiple: int) -> Tensor:
    n_outputs, n_inputs = weight.shape
    missing = (0, -n_inputs % input_multiple, 0, -n_outputs % PANEL)
    return functional.pad(weight, missing) if any(missing) else weight


def _padded_bias(bias: Tensor | None, n_outputs: int) -> Tensor | None:
    return None if bias is None else functional.pad(bias.float(), (0, n_outputs - bias.shape[0])).contiguous()


def _panels(weight: Tensor, step: int) -> Tensor:
    """Returns (panels, steps, PANEL, inputs of a step)."""
    n_outputs, n_inputs = weight.shape
    return weight.view(n_outputs // PANEL, PANEL, n_inputs // step, step).transpose(1, 2).contiguous()
