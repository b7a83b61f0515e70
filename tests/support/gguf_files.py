"""Small GGUF files for tests, written by hand so that they can be wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STRING, ARRAY = 8, 9
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(type_id: int, content: Any) -> bytes:
    """One value without its type; an array is `(item type, items)`."""
    if type_id == STRING:
        return string(content)
    if type_id == ARRAY:
        item_type, items = content
        return struct.pack("<IQ", item_type, len(items)) + b"".join(value(item_type, item) for item in items)
    return struct.pack("<" + _CODES[type_id], content)


def head(pairs: list[tuple[str, int, Any]], *, version: int = 3, n_pairs: int | None = None) -> bytes:
    """The head of a file without tensors: `(key, type, content)` in order."""
    count = len(pairs) if n_pairs is None else n_pairs
    body = b"".join(
        string(key) + struct.pack("<I", type_id) + value(type_id, content) for key, type_id, content in pairs
    )
    return b"GGUF" + struct.pack("<IQQ", version, 0, count) + body


def write(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Writes a file with these keys, each with the type of its Python value."""
    path.write_bytes(head([(key, *_typed(content)) for key, content in metadata.items()]))
    return path


def _typed(content: Any) -> tuple[int, Any]:
    match content:
        case bool():
            return 7, content
        case int():
            return 4, content
        case float():
            return 6, content
        case str():
            return STRING, content
        case [str(), *_]:
            return ARRAY, (STRING, content)
        case [int(), *_]:
            return ARRAY, (5, content)
        case _:
            return ARRAY, (6, content)
