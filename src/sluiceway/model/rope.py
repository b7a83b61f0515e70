"""Rotary positions: the frequencies of each scaling, and the rotation (of halves, not of pairs)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sluiceway.model.config import LinearScaling, Llama3Scaling, ModelConfig, RopeScaling, YarnScaling


class Rope:
    """Computes cosines and sines of positions. `frequency_divisors` (head_dim / 2) is a table of the model file."""

    def __init__(
        self, config: ModelConfig, device: torch.device, dtype: torch.dtype, frequency_divisors: Tensor | None = None
    ) -> None:
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        if frequency_divisors is not None:
            frequencies = frequencies / frequency_divisors
        self.frequencies = frequencies.to(device)
        """Radians per position, (head_dim / 2)."""
        self.magnitude = _magnitude(config.rope_scaling)
        """The factor of cosines and sines."""
        self._dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (tokens, 1, head_dim): the second half repeats the first."""
        angles = positions.to(torch.float32)[:, None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return self._scaled(angles.cos()), self._scaled(angles.sin())

    def _scaled(self, values: Tensor) -> Tensor:
        return (values * self.magnitude if self.magnitude != 1.0 else values).to(self._dtype)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each head of x (tokens, heads, head_dim) by the angles of the position of its token."""
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position for each pair of dimensions, (head_dim / 2), float32."""
    base = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match scaling:
        case None:
            return base
        case LinearScaling(factor=factor):
            return base / factor
        case Llama3Scaling():
            return _llama3(base, scaling)
        case YarnScaling():
            return _yarn(base, scaling, head_dim, theta)


def _llama3(base: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1: a frequency with many turns in the context is kept, one with few is divided, others are blended."""
    turns = scaling.original_max_len * base / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = blend.clamp(0.0, 1.0)
    return kept * base + (1 - kept) * base / scaling.factor


def _yarn(base: Tensor, scaling: YarnScaling, head_dim: int, theta: float) -> Tensor:
    """YaRN: the ramp goes over dimensions, from the one that turns `beta_fast` times to that of `beta_slow`."""

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(scaling.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001  # no division by zero
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return divided * base / scaling.factor + (1 - divided) * base


def _magnitude(scaling: RopeScaling | None) -> float:
    return scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
