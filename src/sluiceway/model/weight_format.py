"""Weight formats, each with the backend that computes with it: torch's matrix products, or the native kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from sluiceway.config import Dtype
from sluiceway.errors import ConfigError
from sluiceway.model.architectures.registry import BY_NAME
from sluiceway.model.backends import Backend, TorchBackend
from sluiceway.model.config import ModelConfig
from sluiceway.model.decoder import TorchDecoder
from sluiceway.model.kernels.binding import Kernels
from sluiceway.model.kernels.decoder import NativeBackend, NativeDecoder, is_supported
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.kernels.packing import PackedProduct, interleave, pack_bf16, pack_int8
from sluiceway.model.linear import Linear, pack
from sluiceway.model.rope import Rope
from sluiceway.model.weights import DecoderWeights

Packed = TypeVar("Packed", covariant=True)


class WeightFormat(Protocol[Packed]):
    """Says in which type and layout each tensor of a file is loaded."""

    @property
    def device(self) -> torch.device: ...

    @property
    def matrix_dtype(self) -> torch.dtype: ...

    @property
    def vector_dtype(self) -> torch.dtype: ...

    def pack(self, weight: Tensor, bias: Tensor | None) -> Packed:
        """Pack a weight of shape (outputs, inputs) for its matrix product."""
        ...

    def pack_gate_up(self, weight: Tensor, bias: Tensor | None) -> Packed:
        """Pack the gate and the up projection, whose rows follow each other in `weight`."""
        ...

    def embedding(self, embedding: Tensor, *, is_tied: bool) -> Tensor | None:
        """The embedding to keep beside the head; None if the head has it already."""
        ...


@dataclass(frozen=True)
class TorchFormat:
    """Keeps all tensors in float32, or all in bfloat16, on any device."""

    dtype: torch.dtype
    device: torch.device

    @property
    def matrix_dtype(self) -> torch.dtype:
        return self.dtype

    @property
    def vector_dtype(self) -> torch.dtype:
        return self.dtype

    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return pack(weight, bias)

    def pack_gate_up(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return pack(weight, bias)

    def embedding(self, embedding: Tensor, *, is_tied: bool) -> Tensor:
        return embedding

    def backend(
        self, config: ModelConfig, weights: DecoderWeights[Linear], divisors: Tensor | None
    ) -> Callable[[int], Backend]:
        make_decoder = BY_NAME[config.architecture].make_decoder or TorchDecoder
        decoder = make_decoder(config, weights, Rope(config, self.device, self.dtype, divisors))
        return lambda n_blocks: TorchBackend(decoder, config, n_blocks, self.dtype, self.device)


@dataclass(frozen=True)
class NativeFormat:
    """Keeps matrices in bf16 or int8 for the native kernels, and small tensors in float32, on the CPU."""

    kernels: Kernels
    is_int8: bool
    device: torch.device = torch.device("cpu")
    vector_dtype: torch.dtype = torch.float32

    @property
    def matrix_dtype(self) -> torch.dtype:
        return torch.float32 if self.is_int8 else torch.bfloat16

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedProduct:
        return pack_int8(weight, bias) if self.is_int8 else pack_bf16(weight, bias)

    def pack_gate_up(self, weight: Tensor, bias: Tensor | None) -> PackedProduct:
        return self.pack(interleave(weight), None if bias is None else interleave(bias))

    def embedding(self, embedding: Tensor, *, is_tied: bool) -> Tensor | None:
        """Keep the embedding in bf16, also with int8 matrices: it needs the precision, and a token reads one row."""
        return None if is_tied and not self.is_int8 else embedding.to(torch.bfloat16)

    def backend(
        self, config: ModelConfig, weights: DecoderWeights[PackedProduct], divisors: Tensor | None
    ) -> Callable[[int], Backend]:
        rope = Rope(config, self.device, torch.float32, divisors)
        decoder = NativeDecoder(config, weights, rope, self.kernels)
        return functools.partial(NativeBackend, decoder, config)


def choose_format(dtype: Dtype, config: ModelConfig) -> TorchFormat | NativeFormat:
    """Choose the format for this machine. Raises `ConfigError` for int8 if the machine or the model cannot use it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_native = device.type == "cpu" and BY_NAME[config.architecture].make_decoder is None and is_supported(config)
    kernels = best_kernels() if is_native else None
    resolved = resolve_dtype(dtype, device)
    if resolved == torch.float32:
        return TorchFormat(resolved, device)
    if kernels is not None:
        return NativeFormat(kernels, is_int8=resolved == torch.int8)
    if resolved == torch.int8:
        raise ConfigError("dtype", "int8 needs a CPU and the native kernels, which this installation or model lacks")
    return TorchFormat(resolved, device)


def resolve_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The torch type of a `--dtype`. `auto`: bfloat16 if the hardware multiplies it natively, else float32."""
    match dtype:
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case "int8":
            return torch.int8
        case "auto":
            return torch.bfloat16 if device.type == "cuda" or has_native_bfloat16() else torch.float32


def has_native_bfloat16() -> bool:
    """True when this CPU has bfloat16 products in AVX-512 or AMX."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
