"""The key-value metadata at the head of a GGUF file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Only the head is
read, through a memory map; the tensors after it are not touched. Every length is checked against the size of the file
before it is used, so a damaged file causes an error and never a huge allocation.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any

from sluiceway.errors import ModelSourceError

_MAGIC = b"GGUF"
_SUPPORTED_VERSIONS = (2, 3)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALAR_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_NESTING = 4
MAX_HEAD_BYTES = 256 << 20
MAX_ARRAY_LENGTH = 4 << 20
"""Published models have heads of up to 15 MB, and arrays (their merges) of up to half a million entries."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<IQ")
_HEADER = struct.Struct("<4sIQQ")


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """Takes the place of an array that is longer than the caller wants."""

    length: int


@dataclass(frozen=True, slots=True)
class GgufHead:
    """The metadata, the number of tensors, and where their descriptions begin."""

    metadata: dict[str, Any]
    n_tensors: int
    n_bytes: int


def read_metadata(path: str, *, skip_arrays_over: int | None = None) -> dict[str, Any]:
    """Read all keys in the order of the file. Arrays are lists, or `SkippedArray` if longer than `skip_arrays_over`.

    Raises `ModelSourceError` if the file is missing, is not a GGUF file, is cut short or damaged.
    """
    return read_head(path, skip_arrays_over=skip_arrays_over).metadata


def read_head(path: str, *, skip_arrays_over: int | None = None) -> GgufHead:
    """Read what `read_metadata` reads, and where the descriptions of the tensors begin."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, skip_arrays_over).head()
    except OSError as error:
        raise ModelSourceError(f"{path}: cannot be read: {error.strerror}") from error
    except _Damage as error:
        raise ModelSourceError(f"{path}: {error}") from error
    except (ValueError, struct.error) as error:  # an empty file cannot be mapped; a text may not be UTF-8
        raise ModelSourceError(f"{path}: is not a readable GGUF file: {error}") from error


class _Damage(Exception):
    """The bytes break the format."""


class _Reader:
    """Reads the head of a file. `_position` is that of the next unread byte."""

    def __init__(self, data: mmap.mmap, skip_arrays_over: int | None) -> None:
        self._data = data
        self._size = min(len(data), MAX_HEAD_BYTES)
        self._position = 0
        self._skip_arrays_over = skip_arrays_over

    def head(self) -> GgufHead:
        n_tensors, n_pairs = self._header()
        metadata: dict[str, Any] = {}
        for _ in range(n_pairs):
            key = self._string()
            if key in metadata:
                raise _Damage(f"the key {key[:100]!r} occurs twice")
            metadata[key] = self._value(self._u32(), nesting=0)
        return GgufHead(metadata, n_tensors, self._position)

    def _header(self) -> tuple[int, int]:
        """Return the numbers of tensors and of key-value pairs."""
        if self._data[:4] != _MAGIC:
            raise _Damage("is not a GGUF file: it does not begin with 'GGUF'")
        _, version, n_tensors, n_pairs = self._unpack(_HEADER)
        if version not in _SUPPORTED_VERSIONS:
            raise _Damage(f"has GGUF version {version}; versions 2 and 3, little-endian, are supported")
        return int(n_tensors), int(n_pairs)

    def _value(self, type_id: int, nesting: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array(nesting + 1)
        code = _SCALAR_CODES.get(type_id)
        if code is None:
            raise _Damage(f"has a value of unknown type {type_id} at byte {self._position}")
        return self._unpack(struct.Struct("<" + code))[0]

    def _array(self, nesting: int) -> Any:
        if nesting > _MAX_NESTING:
            raise _Damage(f"has arrays nested deeper than {_MAX_NESTING}")
        type_id, length = self._unpack(_PAIR)
        code = _SCALAR_CODES.get(type_id)
        # The smallest item that is not a number is an empty string of eight bytes. An array that cannot fit is refused
        # here.
        self._require(length * (struct.calcsize("<" + code) if code else _U64.size))
        if length > MAX_ARRAY_LENGTH:
            raise _Damage(f"has an array of {length} entries at byte {self._position}; the limit is {MAX_ARRAY_LENGTH}")
        if code is not None:
            return self._scalars(code, length)
        if self._is_too_long(length):
            self._skip_items(type_id, length, nesting)
            return SkippedArray(length)
        if type_id == _STRING:
            return [self._string() for _ in range(length)]
        return [self._value(type_id, nesting) for _ in range(length)]

    def _skip_items(self, type_id: int, length: int, nesting: int) -> None:
        for _ in range(length):
            if type_id == _STRING:
                self._string_span()
            else:
                self._value(type_id, nesting)

    def _scalars(self, code: str, length: int) -> Any:
        start = self._position
        self._position += length * struct.calcsize("<" + code)
        if self._is_too_long(length):
            return SkippedArray(length)
        return list(struct.unpack_from(f"<{length}{code}", self._data, start))

    def _is_too_long(self, length: int) -> bool:
        return self._skip_arrays_over is not None and length > self._skip_arrays_over

    def _string(self) -> str:
        return self._data[self._string_span()].decode()

    def _string_span(self) -> slice:
        # This runs twice for each token of a vocabulary, so it calls no function unless something is wrong.
        start = self._position + _U64.size
        if start > self._size:
            self._require(_U64.size)
        end = start + _U64.unpack_from(self._data, self._position)[0]
        if end > self._size:
            self._require(end - self._position)
        self._position = end
        return slice(start, end)

    def _u32(self) -> int:
        return int(self._unpack(_U32)[0])

    def _unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        self._require(form.size)
        start = self._position
        self._position += form.size
        return form.unpack_from(self._data, start)

    def _require(self, n_bytes: int) -> None:
        if n_bytes > self._size - self._position:
            raise _Damage(f"is cut short: {n_bytes} bytes are missing or a length is wrong at byte {self._position}")
