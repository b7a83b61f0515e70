"""From files to a decoder that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sluiceway.config import Dtype, ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.model.checkpoint import (
    EMBEDDING,
    HEAD,
    NORM,
    Checkpoint,
    Shape,
    check_shapes,
    expected_shapes,
    layer_name,
)
from sluiceway.model.config import ModelConfig
from sluiceway.model.gguf import GgufCheckpoint
from sluiceway.model.hf_config import read_directory_config
from sluiceway.model.linear import Linear, pack
from sluiceway.model.llama import Decoder, DecoderWeights, LayerWeights
from sluiceway.model.rope import Rope
from sluiceway.model.safetensors import SafetensorsCheckpoint

Progress = Callable[[int, int], None]
"""Bytes of the files' tensors that are loaded, and all of them."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    config: ModelConfig
    decoder: Decoder
    dtype: torch.dtype
    device: torch.device


def load_model(files: ModelFiles, dtype: Dtype, on_progress: Progress | None = None) -> LoadedModel:
    """Raises `ModelSourceError` for files that cannot be read, `ConfigError` for a model that is not supported.

    On the CPU each matrix exists once, packed for its kernel; in the files' own dtype nothing is copied before that.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint, config = open_checkpoint(files)
    check_shapes(expected_shapes(config), checkpoint.shapes, files.path)
    resolved = resolve_dtype(dtype, device)
    decoder = _Loading(checkpoint, config, resolved, device, on_progress).decoder()
    return LoadedModel(config, decoder, resolved, device)


def open_checkpoint(files: ModelFiles) -> tuple[Checkpoint, ModelConfig]:
    match files.kind:
        case ModelKind.DIRECTORY:
            directory = Path(files.path)
            return SafetensorsCheckpoint(directory), read_directory_config(directory)
        case ModelKind.GGUF:
            checkpoint = GgufCheckpoint(files.path)
            return checkpoint, checkpoint.config
        case ModelKind.FAKE:
            raise ModelSourceError("the fake model has no weights to load")


def resolve_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32: emulated it is slower than that."""
    match dtype:
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case "auto":
            return torch.bfloat16 if device.type == "cuda" or has_native_bfloat16() else torch.float32


def has_native_bfloat16() -> bool:
    """Whether this CPU has bfloat16 products in AVX-512 or AMX."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class _Loading:
    """One pass over the tensors of a checkpoint, in the order of the decoder."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: Progress | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._shapes = expected_shapes(config)
        self._dtype = dtype
        self._device = device
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(checkpoint.source_bytes(name) for name in self._shapes)

    def decoder(self) -> Decoder:
        embedding = self._tensor(EMBEDDING)
        weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(index) for index in range(self._config.n_layers)),
            norm=self._tensor(NORM),
            head=pack(embedding if self._config.is_tied else self._tensor(HEAD)),
        )
        divisors = self._checkpoint.frequency_divisors()
        return Decoder(self._config, weights, Rope(self._config, self._device, self._dtype, divisors))

    def _layer(self, index: int) -> LayerWeights:
        has_qk_norm = self._config.has_qk_norm
        return LayerWeights(
            attention_norm=self._tensor(layer_name(index, "input_layernorm.weight")),
            qkv=self._linear(index, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=self._tensor(layer_name(index, "self_attn.q_norm.weight")) if has_qk_norm else None,
            k_norm=self._tensor(layer_name(index, "self_attn.k_norm.weight")) if has_qk_norm else None,
            out=self._linear(index, "self_attn.o_proj"),
            mlp_norm=self._tensor(layer_name(index, "post_attention_layernorm.weight")),
            gate_up=self._linear(index, "mlp.gate_proj", "mlp.up_proj"),
            down=self._linear(index, "mlp.down_proj"),
        )

    def _linear(self, layer: int, *parts: str) -> Linear:
        weight = self._joined([layer_name(layer, f"{part}.weight") for part in parts])
        biases = [layer_name(layer, f"{part}.bias") for part in parts]
        return pack(weight, self._joined(biases) if biases[0] in self._shapes else None)

    def _tensor(self, name: str) -> Tensor:
        return self._joined([name])

    def _joined(self, names: list[str]) -> Tensor:
        """These tensors one below the other, each read into its place."""
        mapped = self._checkpoint.mapped(names[0], self._dtype) if len(names) == 1 else None
        if mapped is None:
            n_rows = sum(self._shapes[name][0] for name in names)
            mapped = torch.empty(_with_rows(self._shapes[names[0]], n_rows), dtype=self._dtype)
            first = 0
            for name in names:
                n_part = self._shapes[name][0]
                self._checkpoint.read_into(name, mapped[first : first + n_part])
                first += n_part
        self._report(names)
        return mapped.to(self._device)

    def _report(self, names: list[str]) -> None:
        self._done_bytes += sum(self._checkpoint.source_bytes(name) for name in names)
        if self._on_progress is not None:
            self._on_progress(self._done_bytes, self._total_bytes)


def _with_rows(shape: Shape, n_rows: int) -> Shape:
    return (n_rows, *shape[1:])
