"""The configuration of a model, whatever file it comes from. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from sluiceway.errors import ModelConfigError

MAX_SIZE = 2**31 - 1
MAX_LAYERS = 4096
MAX_ROPE_FACTOR = 1e6
"""Larger settings come from damaged files. The largest published models have about 130 layers."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are divided by `factor`, short ones are kept, with a ramp between them (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """NTK by parts (https://arxiv.org/abs/2309.00071). `attention_factor` scales cosine and sine."""

    factor: float
    original_max_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    """True when the bounds of the ramp are rounded outwards to whole dimensions."""


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """The factor by which YaRN scales queries and keys, so that attention keeps its temperature in a longer context."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    `sliding_window`: a token sees this many positions, its own included; None: all before it.
    """

    architecture: str
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    is_tied: bool = False
    """The output matrix is the embedding."""
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in (
            "n_layers",
            "hidden_size",
            "intermediate_size",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "vocab_size",
            "max_model_len",
        ):
            if not 1 <= getattr(self, field) <= MAX_SIZE:
                raise ModelConfigError(field, f"must be at least 1 and at most {MAX_SIZE}, not {getattr(self, field)}")
        if self.n_layers > MAX_LAYERS:
            raise ModelConfigError("n_layers", f"must be at most {MAX_LAYERS}, not {self.n_layers}")
        if self.n_heads % self.n_kv_heads:
            raise ModelConfigError("n_heads", f"{self.n_heads} is not a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.head_dim % 2:
            raise ModelConfigError("head_dim", f"must be even for rotary positions, not {self.head_dim}")
        if not self.rms_eps > 0:
            raise ModelConfigError("rms_eps", f"must be positive, not {self.rms_eps}")
        if not self.rope_theta > 1:
            raise ModelConfigError("rope_theta", f"must be above 1, not {self.rope_theta}")

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def kv_token_elements(self) -> int:
        """Numbers that the cache holds for one token of context: keys and values of all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim
