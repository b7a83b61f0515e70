"""Reads the weights of a GGUF file or of its parts, and dequantises each tensor to where it is used.

The `gguf` package knows every block format. Its reader builds an object for each vocabulary entry, which takes seconds,
so this file reads the descriptions of the tensors. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from sluiceway.errors import ModelSourceError
from sluiceway.model.architectures.registry import BY_NAME
from sluiceway.model.checkpoint import Shape
from sluiceway.model.config import ModelConfig
from sluiceway.model.fields import shown
from sluiceway.model.gguf_config import config_from_metadata
from sluiceway.model_files import gguf_parts
from sluiceway.tokenizer.text.gguf_metadata import read_head

_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = 1 << 12
_KEPT_ARRAY_LENGTH = 16
"""Longer arrays belong to vocabularies, which are not needed here."""

_PIECE_ROWS = 16
_PIECE_ROW_BYTES = 4096
"""The package dequantises 16 rows at a time, whatever their length. With rows of this size, a piece fits into the
caches of the processor, and calls are few: three times as fast as with the rows of a small model."""

_ROPE_FREQS = "rope_freqs.weight"

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_PARTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    shape: Shape
    quantization: GGMLQuantizationType
    file: npt.NDArray[np.uint8]
    start: int
    """The byte of the file at which the data begins."""
    n_bytes: int


class GgufCheckpoint:
    """A model in one file, or in several parts, which are found by the name of any part. The first has the metadata.

    Raises `ModelSourceError` for a damaged or missing file, `ModelConfigError` for a model that is not supported.
    """

    def __init__(self, path: str) -> None:
        parts = [_Part(str(part)) for part in gguf_parts(Path(path))]
        _check_parts(parts)
        self._path = parts[0].path
        raw: dict[str, _TensorInfo] = {}
        for part in parts:
            for name, info in part.infos().items():
                if name in raw:
                    raise ModelSourceError(f"{part.path}: tensor {name!r} is there twice")
                raw[name] = info
        self.config: ModelConfig = config_from_metadata(
            parts[0].head.metadata, {name: info.shape for name, info in raw.items()}
        )
        self._divisors = self._checked_divisors(raw.pop(_ROPE_FREQS, None))
        self._infos = {_canonical_name(name): info for name, info in raw.items()}
        if len(self._infos) < len(raw):
            raise ModelSourceError(f"{self._path}: two tensors have names that mean the same")
        self._shapes = {name: info.shape for name, info in self._infos.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def source_bytes(self, name: str) -> int:
        return self._infos[name].n_bytes

    def read_into(self, name: str, out: Tensor) -> None:
        self._dequantise(self._infos[name], out)
        n_heads = self._interleaved_heads(name)
        if n_heads:
            out.copy_(_halves_from_pairs(out, n_heads))

    def mapped(self, name: str, dtype: torch.dtype) -> Tensor | None:
        return None

    def frequency_divisors(self) -> Tensor | None:
        return self._divisors

    def _checked_divisors(self, info: _TensorInfo | None) -> Tensor | None:
        if info is None:
            return None
        if info.shape != (self.config.head_dim // 2,):
            raise ModelSourceError(
                f"{self._path}: tensor {_ROPE_FREQS!r} has shape {info.shape}, the model needs "
                f"{(self.config.head_dim // 2,)}"
            )
        divisors = torch.empty(info.shape, dtype=torch.float32)
        self._dequantise(info, divisors)
        if not bool((divisors.isfinite() & (divisors > 0)).all()):
            raise ModelSourceError(f"{self._path}: tensor {_ROPE_FREQS!r} must hold positive numbers")
        return divisors

    def _dequantise(self, info: _TensorInfo, out: Tensor) -> None:
        """Fill `out` directly if it is float32, else by way of one tensor in float32."""
        if out.dtype == torch.float32:
            self._fill(info, out.view(-1).numpy())
            return
        values = np.empty(math.prod(info.shape), dtype=np.float32)
        self._fill(info, values)
        out.copy_(torch.from_numpy(values).view(info.shape))

    def _fill(self, info: _TensorInfo, out: npt.NDArray[np.float32]) -> None:
        block_len, block_bytes = GGML_QUANT_SIZES[info.quantization]
        data = info.file[info.start : info.start + info.n_bytes]
        step = max(1, _PIECE_ROW_BYTES // block_bytes) * block_bytes * _PIECE_ROWS
        for begin in range(0, info.n_bytes, step):
            piece = data[begin : begin + step]
            n_rows = _PIECE_ROWS if piece.size == step else 1
            with np.errstate(all="ignore"):  # some formats compute with halves that they then throw away
                values = dequantize(piece.reshape(n_rows, -1), info.quantization).reshape(-1)
            first = begin // block_bytes * block_len
            out[first : first + values.size] = values

    def _interleaved_heads(self, name: str) -> int:
        """The number of heads of a query or key matrix whose rows are in pairs; 0 for any other tensor."""
        if not BY_NAME[self.config.architecture].is_paired_in_gguf:
            return 0
        if ".q_proj." in name:
            return self.config.n_heads
        return self.config.n_kv_heads if ".k_proj." in name else 0


def _halves_from_pairs(rows: Tensor, n_heads: int) -> Tensor:
    """Undo the conversion to GGUF, which puts dimension i + head_dim / 2 of each head right after dimension i."""
    return rows.view(n_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _canonical_name(name: str) -> str:
    """The name in the form of Hugging Face. Unknown names stay as they are; they cause an error later."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in _LAYER_PARTS:
        return f"model.layers.{match[1]}.{_LAYER_PARTS[match[2]]}.{match[3]}"
    return _TOP_PARTS.get(name, name)


class _Part:
    """One file: its head and its list of tensors."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.head = read_head(path, skip_arrays_over=_KEPT_ARRAY_LENGTH)

    def split(self, key: str) -> int | None:
        """A number that all parts of a model share."""
        value = self.head.metadata.get(f"split.{key}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ModelSourceError(f"{self.path}: split.{key} must be a whole number")
        return value

    def infos(self) -> dict[str, _TensorInfo]:
        """Check that each tensor is inside the file."""
        alignment = self.head.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1:
            raise ModelSourceError(f"{self.path}: general.alignment must be a positive number, not {shown(alignment)}")
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                raw = list(_walk_infos(data, self.head.n_bytes, self.head.n_tensors))
            except (struct.error, ValueError, OverflowError) as error:
                raise ModelSourceError(f"{self.path}: the list of tensors is cut short or damaged: {error}") from error
        end = raw[-1].end if raw else self.head.n_bytes
        base = -(-end // alignment) * alignment
        data_of_file: npt.NDArray[np.uint8] = np.asarray(np.memmap(self.path, dtype=np.uint8, mode="r"))
        infos: dict[str, _TensorInfo] = {}
        for entry in raw:
            if entry.offset % alignment:
                raise ModelSourceError(
                    f"{self.path}: tensor {entry.name!r} does not begin at a multiple of {alignment} bytes"
                )
            info = _checked(self.path, entry, base, data_of_file)
            if info.start + info.n_bytes > len(data_of_file):
                raise ModelSourceError(
                    f"{self.path}: is cut short: tensor {entry.name!r} ends after the file's {len(data_of_file)} bytes"
                )
            if entry.name in infos:
                raise ModelSourceError(f"{self.path}: tensor {entry.name!r} is there twice")
            infos[entry.name] = info
        return infos


def _check_parts(parts: list[_Part]) -> None:
    """Check that the files are the parts of one model, in their order."""
    for number, part in enumerate(parts):
        count = part.split("count")
        if (count or 1) != len(parts):
            own = f"part {(part.split('no') or 0) + 1} of {count}" if count else "no part of a model in several files"
            hint = "" if len(parts) > 1 else f"; its name must end in -00001-of-{count:05}.gguf to find the others by"
            raise ModelSourceError(f"{part.path}: is {own} by its metadata{hint}")
        if len(parts) > 1 and part.split("no") != number:
            raise ModelSourceError(
                f"{part.path}: is part {(part.split('no') or 0) + 1} by its metadata, and part {number + 1} by its name"
            )
    total, n_tensors = parts[0].split("tensors.count"), sum(part.head.n_tensors for part in parts)
    if len(parts) > 1 and total not in (None, n_tensors):
        raise ModelSourceError(f"{parts[0].path}: the parts have {n_tensors} tensors, and should have {total}")


@dataclass(frozen=True, slots=True)
class _RawInfo:
    name: str
    shape: Shape
    type_id: int
    offset: int
    end: int
    """The byte after this description."""


def _walk_infos(data: mmap.mmap, position: int, n_tensors: int) -> Iterator[_RawInfo]:
    for _ in range(n_tensors):
        (n_name,) = struct.unpack_from("<Q", data, position)
        if n_name > _MAX_NAME_BYTES:
            raise ValueError(f"the name of a tensor has {n_name} bytes")
        position += 8
        name = data[position : position + n_name].decode()
        position += n_name
        (n_dimensions,) = struct.unpack_from("<I", data, position)
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {n_dimensions} dimensions")
        *dimensions, type_id, offset = struct.unpack_from(f"<{n_dimensions}QIQ", data, position + 4)
        position += 4 + 8 * n_dimensions + 12
        # The file counts from the innermost dimension.
        yield _RawInfo(name, tuple(reversed(dimensions)), type_id, offset, position)


def _checked(path: str, entry: _RawInfo, base: int, file: npt.NDArray[np.uint8]) -> _TensorInfo:
    try:
        quantization = GGMLQuantizationType(entry.type_id)
        block_len, block_bytes = GGML_QUANT_SIZES[quantization]
        dequantize(np.zeros((1, block_bytes), dtype=np.uint8), quantization)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelSourceError(f"{path}: tensor {entry.name!r} has an unknown block type: {error}") from error
    if not entry.shape or entry.shape[-1] % block_len or math.prod(entry.shape) < 1:
        raise ModelSourceError(
            f"{path}: tensor {entry.name!r} has shape {entry.shape}, which is not whole blocks of {block_len}"
        )
    return _TensorInfo(
        entry.shape, quantization, file, base + entry.offset, math.prod(entry.shape) // block_len * block_bytes
    )
