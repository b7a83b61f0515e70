"""Loads a model from its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from sluiceway.config import Dtype, ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.model.backends import Backend
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
from sluiceway.model.safetensors import SafetensorsCheckpoint
from sluiceway.model.weight_format import NativeFormat, TorchFormat, WeightFormat, choose_format
from sluiceway.model.weights import DecoderWeights, LayerWeights, Product

Progress = Callable[[int, int], None]
"""A function that gets the loaded bytes of tensors so far, and the bytes of all tensors."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model. `start(n_blocks)` makes a backend with its own cache. All backends share the weights.

    Only one backend may compute at a time.
    """

    config: ModelConfig
    start: Callable[[int], Backend]


def load_model(files: ModelFiles, dtype: Dtype, on_progress: Progress | None = None) -> LoadedModel:
    """Load a model.

    On the CPU each matrix exists once, packed for its kernel; files of the same type are not copied before that.
    Raises `ModelSourceError` for unreadable files and `ModelConfigError` for a model that is not supported.
    """
    checkpoint, config = open_checkpoint(files)
    check_shapes(expected_shapes(config), checkpoint.shapes, files.path)
    divisors = checkpoint.frequency_divisors()
    match choose_format(dtype, config):
        case NativeFormat() as native:
            packed = load_weights(checkpoint, config, native, on_progress)
            return LoadedModel(config, native.backend(config, packed, divisors))
        case TorchFormat() as plain:
            weights = load_weights(checkpoint, config, plain, on_progress)
            return LoadedModel(config, plain.backend(config, weights, divisors))


def load_weights(
    checkpoint: Checkpoint,
    config: ModelConfig,
    weight_format: WeightFormat[Product],
    on_progress: Progress | None = None,
) -> DecoderWeights[Product]:
    """Load the weights in this format. The checkpoint has the tensors that `expected_shapes` lists."""
    return _Loading(checkpoint, config, weight_format, on_progress).weights()


def open_checkpoint(files: ModelFiles) -> tuple[Checkpoint, ModelConfig]:
    match files.kind:
        case ModelKind.DIRECTORY:
            directory = Path(files.path)
            config, shards = read_directory_config(directory), SafetensorsCheckpoint(directory)
            return shards, replace(config, is_tied=config.is_tied and shards.has_one_head())
        case ModelKind.GGUF:
            checkpoint = GgufCheckpoint(files.path)
            return checkpoint, checkpoint.config
        case ModelKind.FAKE:
            raise ModelSourceError("the fake model has no weights to load")


class _Loading(Generic[Product]):
    """Reads the tensors of a checkpoint once, in the order of the decoder."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        weight_format: WeightFormat[Product],
        on_progress: Progress | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._format = weight_format
        self._shapes = expected_shapes(config)
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(checkpoint.source_bytes(name) for name in self._shapes)

    def weights(self) -> DecoderWeights[Product]:
        embedding = self._matrix([EMBEDDING])
        head = self._format.pack(embedding if self._config.is_tied else self._matrix([HEAD]), None)
        return DecoderWeights(
            embedding=self._format.embedding(embedding, is_tied=self._config.is_tied),
            layers=tuple(self._layer(index) for index in range(self._config.n_layers)),
            norm=self._vector([NORM]),
            head=head,
        )

    def _layer(self, index: int) -> LayerWeights[Product]:
        has_qk_norm = self._config.has_qk_norm
        return LayerWeights(
            attention_norm=self._vector([layer_name(index, "input_layernorm.weight")]),
            qkv=self._format.pack(*self._linear(index, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            q_norm=self._vector([layer_name(index, "self_attn.q_norm.weight")]) if has_qk_norm else None,
            k_norm=self._vector([layer_name(index, "self_attn.k_norm.weight")]) if has_qk_norm else None,
            out=self._format.pack(*self._linear(index, "self_attn.o_proj")),
            mlp_norm=self._vector([layer_name(index, "post_attention_layernorm.weight")]),
            gate_up=self._format.pack_gate_up(*self._linear(index, "mlp.gate_proj", "mlp.up_proj")),
            down=self._format.pack(*self._linear(index, "mlp.down_proj")),
        )

    def _linear(self, layer: int, *parts: str) -> tuple[Tensor, Tensor | None]:
        weight = self._matrix([layer_name(layer, f"{part}.weight") for part in parts])
        biases = [layer_name(layer, f"{part}.bias") for part in parts]
        return weight, self._vector(biases) if biases[0] in self._shapes else None

    def _matrix(self, names: list[str]) -> Tensor:
        return self._joined(names, self._format.matrix_dtype)

    def _vector(self, names: list[str]) -> Tensor:
        return self._joined(names, self._format.vector_dtype)

    def _joined(self, names: list[str], dtype: torch.dtype) -> Tensor:
        """Read these tensors into one, row after row."""
        mapped = self._checkpoint.mapped(names[0], dtype) if len(names) == 1 else None
        if mapped is None:
            n_rows = sum(self._shapes[name][0] for name in names)
            mapped = torch.empty(_with_rows(self._shapes[names[0]], n_rows), dtype=dtype)
            first = 0
            for name in names:
                n_part = self._shapes[name][0]
                self._checkpoint.read_into(name, mapped[first : first + n_part])
                first += n_part
        self._report(names)
        return mapped.to(self._format.device)

    def _report(self, names: list[str]) -> None:
        self._done_bytes += sum(self._checkpoint.source_bytes(name) for name in names)
        if self._on_progress is not None:
            self._on_progress(self._done_bytes, self._total_bytes)


def _with_rows(shape: Shape, n_rows: int) -> Shape:
    return (n_rows, *shape[1:])
