"""The weights of a model directory: one safetensors file, or shards with an index."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sluiceway.errors import ModelSourceError
from sluiceway.model.checkpoint import EMBEDDING, HEAD, Shape
from sluiceway.model_files import weight_files

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsCheckpoint:
    """Reads memory-mapped files: a tensor is a view of its file until it is copied."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._bytes: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}
        for path in weight_files(directory):
            self._open(path)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def source_bytes(self, name: str) -> int:
        return self._bytes[name]

    def read_into(self, name: str, out: Tensor) -> None:
        out.copy_(self._tensor(name))

    def mapped(self, name: str, dtype: torch.dtype) -> Tensor | None:
        tensor = self._tensor(name)
        return tensor if tensor.dtype == dtype else None

    def has_one_head(self) -> bool:
        """True when the output matrix can be the embedding: the file has no other one, or repeats it bit by bit.

        Ask this if the settings tie the two. A file that contradicts its settings is right, as in transformers.
        """
        if EMBEDDING not in self._shapes or HEAD not in self._shapes:
            return True
        if self._shapes[EMBEDDING] != self._shapes[HEAD]:
            return False
        embedding, head = self._tensor(EMBEDDING), self._tensor(HEAD)
        return embedding.dtype == head.dtype and torch.equal(embedding, head)

    def frequency_divisors(self) -> Tensor | None:
        return None

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelSourceError(f"{path}: cannot be read as safetensors: {error}") from error
        for name in file.keys():
            if name in self._files:
                raise ModelSourceError(f"{path}: has the tensor {name!r}, which another shard has too")
            part = file.get_slice(name)
            dtype = part.get_dtype()
            if dtype not in DTYPE_BYTES:
                raise ModelSourceError(f"{path}: tensor {name!r} is {dtype}; supported: {', '.join(DTYPE_BYTES)}")
            self._files[name] = file
            self._shapes[name] = tuple(part.get_shape())
            self._bytes[name] = math.prod(self._shapes[name]) * DTYPE_BYTES[dtype]

    def _tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor
