"""The small operations follow their definitions."""

from __future__ import annotations

import torch

from sluiceway.model.layers import rms_norm, swiglu

GENERATOR = torch.Generator().manual_seed(0)


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    """The epsilon is inside the root."""
    x, weight = torch.randn(5, 32, generator=GENERATOR), torch.randn(32, generator=GENERATOR)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 0.01).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 0.01), expected)


def test_swiglu_gates_the_second_half_by_the_first() -> None:
    """The result is silu(gate) * up."""
    x = torch.randn(5, 32, generator=GENERATOR)
    gate, up = x[:, :16], x[:, 16:]
    torch.testing.assert_close(swiglu(x.clone()), gate * torch.sigmoid(gate) * up)
