"""Reading the head of GGUF files: every type, and every kind of damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ModelSourceError
from sluiceway.tokenizer.text import gguf_metadata
from sluiceway.tokenizer.text.gguf_metadata import SkippedArray, read_metadata
from support import gguf_files
from support.gguf_files import ARRAY, STRING, head

EVERY_TYPE: list[tuple[str, int, Any, Any]] = [
    ("u8", 0, 255, 255),
    ("i8", 1, -128, -128),
    ("u16", 2, 65_535, 65_535),
    ("i16", 3, -2, -2),
    ("u32", 4, 1 << 31, 1 << 31),
    ("i32", 5, -3, -3),
    ("f32", 6, 0.5, 0.5),
    ("bool", 7, True, True),
    ("text", STRING, "Ġ漢😀\n", "Ġ漢😀\n"),
    ("u64", 10, 1 << 63, 1 << 63),
    ("i64", 11, -(1 << 62), -(1 << 62)),
    ("f64", 12, 1e300, 1e300),
    ("strings", ARRAY, (STRING, ["a", "", "c"]), ["a", "", "c"]),
    ("numbers", ARRAY, (5, [1, -1]), [1, -1]),
    ("bools", ARRAY, (7, [True, False]), [True, False]),
    ("nothing", ARRAY, (6, []), []),
    ("nested", ARRAY, (ARRAY, [(4, [1, 2]), (STRING, ["x"])]), [[1, 2], ["x"]]),
]
WHOLE = head([(key, type_id, content) for key, type_id, content, _ in EVERY_TYPE])


def read(tmp_path: Path, data: bytes, **options: int) -> dict[str, Any]:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return read_metadata(str(path), **options)


@pytest.mark.parametrize("version", [2, 3])
def test_read_metadata_gives_every_type_in_the_order_of_the_file(tmp_path: Path, version: int) -> None:
    """Scalars of all widths, strings, and arrays of each."""
    data = head([(key, type_id, content) for key, type_id, content, _ in EVERY_TYPE], version=version)
    assert list(read(tmp_path, data).items()) == [(key, expected) for key, _, _, expected in EVERY_TYPE]


def test_read_metadata_skips_long_arrays_on_request(tmp_path: Path) -> None:
    """Only the length of a long array is kept, and the next key is read."""
    metadata = read(tmp_path, WHOLE, skip_arrays_over=1)
    assert metadata["strings"] == SkippedArray(3)
    assert metadata["numbers"] == SkippedArray(2)
    assert metadata["nested"] == SkippedArray(2)
    assert metadata["nothing"] == []
    assert metadata["f64"] == 1e300


def test_read_metadata_ignores_what_follows_the_pairs(tmp_path: Path) -> None:
    assert read(tmp_path, head([("a", 4, 1)]) + os.urandom(64)) == {"a": 1}


def test_read_metadata_refuses_when_the_file_is_cut_anywhere(tmp_path: Path) -> None:
    """The error names the file."""
    for n_bytes in range(len(WHOLE)):
        with pytest.raises(ModelSourceError, match="m.gguf"):
            read(tmp_path, WHOLE[:n_bytes])


def test_read_metadata_gives_a_value_or_a_source_error_when_any_byte_is_changed(tmp_path: Path) -> None:
    """Damage causes no other exception and no huge allocation."""
    for position in range(len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[position] ^= 0xFF
        try:
            read(tmp_path, bytes(damaged))
        except ModelSourceError as error:
            assert "m.gguf" in str(error)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04" + bytes(60), "does not begin with 'GGUF'"),
        (head([], version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (head([("a", 4, 1), ("a", 4, 2)]), "twice"),
        (head([("a", 4, 1)], n_pairs=1 << 60), "cut short"),
        (head([], n_pairs=1) + gguf_files.string("a") + struct.pack("<I", 99), "unknown type 99"),
        (head([], n_pairs=1) + gguf_files.string("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 62), "cut short"),
        (head([], n_pairs=1) + gguf_files.string("a") + struct.pack("<IIQ", ARRAY, 4, 1 << 62), "cut short"),
        (head([], n_pairs=1) + struct.pack("<Q", 1 << 63), "cut short"),
        (head([], n_pairs=1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(4), "not a readable GGUF"),
        (b"", "not a readable GGUF"),
    ],
)
def test_read_metadata_says_what_is_wrong_with_a_damaged_file(tmp_path: Path, data: bytes, reason: str) -> None:
    """Wrong magic, version, byte order, lengths, types and text."""
    with pytest.raises(ModelSourceError, match=reason):
        read(tmp_path, data)


def test_read_metadata_limits_the_cost_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It limits the entries of an array and the bytes of the head."""
    data = head([("a", ARRAY, (4, [1, 2, 3]))])
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAY_LENGTH", 2)
    with pytest.raises(ModelSourceError, match="an array of 3 entries.*the limit is 2"):
        read(tmp_path, data)
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAY_LENGTH", 3)
    assert read(tmp_path, data) == {"a": [1, 2, 3]}
    monkeypatch.setattr(gguf_metadata, "MAX_HEAD_BYTES", len(data) - 1)
    with pytest.raises(ModelSourceError, match="cut short"):
        read(tmp_path, data)


def test_read_metadata_refuses_arrays_nested_without_end(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", ARRAY, 1) * 5000 + struct.pack("<IQ", 4, 0)
    data = head([], n_pairs=1) + gguf_files.string("a") + struct.pack("<I", ARRAY) + nested
    with pytest.raises(ModelSourceError, match="nested deeper"):
        read(tmp_path, data)


@pytest.mark.parametrize("name", ["absent.gguf", "."])
def test_read_metadata_refuses_a_path_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    """A missing file and a directory."""
    with pytest.raises(ModelSourceError, match="cannot be read"):
        read_metadata(str(tmp_path / name))
