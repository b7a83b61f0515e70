"""The weights of a model directory: one safetensors file, or shards with an index."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sluiceway.errors import ModelSourceError
from sluiceway.model.checkpoint import Shape

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class SafetensorsCheckpoint:
    """Files are memory-mapped: a tensor is a view of its file until something copies it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._bytes: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}
        for path in _shard_paths(directory):
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

    def frequency_divisors(self) -> Tensor | None:
        return None

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ModelSourceError(f"{path}: cannot be read as safetensors: {error}") from error
        for name in file.keys():
            part = file.get_slice(name)
            dtype = part.get_dtype()
            if dtype not in _DTYPE_BYTES:
                raise ModelSourceError(f"{path}: tensor {name!r} is {dtype}; supported: {', '.join(_DTYPE_BYTES)}")
            self._files[name] = file
            self._shapes[name] = tuple(part.get_shape())
            self._bytes[name] = math.prod(self._shapes[name]) * _DTYPE_BYTES[dtype]

    def _tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def _shard_paths(directory: Path) -> list[Path]:
    if (directory / _SINGLE).exists():
        return [directory / _SINGLE]
    index = directory / _INDEX
    if not index.exists():
        raise ModelSourceError(f"{directory}: has neither {_SINGLE} nor {_INDEX}")
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelSourceError(f"{index}: is not an index of shards: {error!r}") from error
    if not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise ModelSourceError(f"{index}: names a file outside the directory")
    return [directory / file for file in sorted(files)]
