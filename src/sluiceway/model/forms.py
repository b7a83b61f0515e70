"""The forms that weights can have, each with what computes them: torch's own products, or native panels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from sluiceway.config import Dtype
from sluiceway.errors import ConfigError
from sluiceway.model.config import ModelConfig
from sluiceway.model.kernels.binding import Kernels
from sluiceway.model.kernels.decoder import NativeDecoder, NativePass, is_supported
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.kernels.packing import PackedProduct, interleave, pack_bf16, pack_int8
from sluiceway.model.linear import Linear, pack
from sluiceway.model.llama import Decoder
from sluiceway.model.passes import Pass, TorchPass
from sluiceway.model.rope import Rope
from sluiceway.model.weights import DecoderWeights

Packed = TypeVar("Packed", covariant=True)


class Form(Protocol[Packed]):
    """How the tensors of a file are wanted."""

    @property
    def device(self) -> torch.device: ...

    @property
    def matrix_dtype(self) -> torch.dtype: ...

    @property
    def vector_dtype(self) -> torch.dtype: ...

    def pack(self, weight: Tensor, bias: Tensor | None) -> Packed:
        """The product with this weight (outputs, inputs)."""
        ...

    def pack_gate_up(self, weight: Tensor, bias: Tensor | None) -> Packed:
        """The same for gates and then ups."""
        ...

    def embedding(self, embedding: Tensor, *, is_tied: bool) -> Tensor | None:
        """What is kept of it beside the head; None: nothing, as the head has all of it."""
        ...


@dataclass(frozen=True)
class TorchForm:
    """Any device; float32 or bfloat16 throughout."""

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

    def passes(
        self, config: ModelConfig, weights: DecoderWeights[Linear], divisors: Tensor | None
    ) -> Callable[[int], Pass]:
        decoder = Decoder(config, weights, Rope(config, self.device, self.dtype, divisors))
        return lambda n_blocks: TorchPass(decoder, config, n_blocks, self.dtype, self.device)


@dataclass(frozen=True)
class NativeForm:
    """On the CPU; matrices in bf16 or int8, everything small in float32."""

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
        """In int8 the embedding stays in bf16 beside the head: it costs one row a token, and is worth its precision."""
        return None if is_tied and not self.is_int8 else embedding.to(torch.bfloat16)

    def passes(
        self, config: ModelConfig, weights: DecoderWeights[PackedProduct], divisors: Tensor | None
    ) -> Callable[[int], Pass]:
        rope = Rope(config, self.device, torch.float32, divisors)
        decoder = NativeDecoder(config, weights, rope, self.kernels)
        return functools.partial(NativePass, decoder, config)


def choose_form(dtype: Dtype, config: ModelConfig) -> TorchForm | NativeForm:
    """Raises `ConfigError` for int8 where nothing computes it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernels = best_kernels() if device.type == "cpu" and is_supported(config) else None
    resolved = resolve_dtype(dtype, device)
    if resolved == torch.float32:
        return TorchForm(resolved, device)
    if kernels is not None:
        return NativeForm(kernels, is_int8=resolved == torch.int8)
    if resolved == torch.int8:
        raise ConfigError("dtype", "int8 needs a CPU and the native kernels, which this installation or model lacks")
    return TorchForm(resolved, device)


def resolve_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32: emulated it is slower than that."""
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
    """Whether this CPU has bfloat16 products in AVX-512 or AMX."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
