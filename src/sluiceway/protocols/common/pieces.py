"""The JSON of a whole answer, in pieces: they are made while its tokens come, and are never joined.

Building a large body at its end would block the loop, and joining it would need its memory twice. So each part of it
(the text, the token ids, the logprobs of a choice) is encoded as it comes, and kept in pieces of a bounded size. All
readers of the answer share them.

Large pieces are not in the heap, but in memory mappings of their own. glibc returns memory only from the top of the
heap, and small blocks that live long lie between large ones: an answer of 150 MiB left 120 MiB behind. A mapping is
returned to the system with the last reference to it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

from sluiceway.sse.encoder import encode_json
from sluiceway.types import Piece

PIECE_BYTES = 64 * 1024
"""No piece is larger."""
MAPPED_BYTES = 16 * 1024
"""Smaller pieces are in the heap: a mapping has whole pages, and needs a system call."""


class JsonPieces:
    """Collects the JSON of one part of an answer: of a string, or of an array."""

    __slots__ = ("_open", "_sealed")

    def __init__(self) -> None:
        self._sealed: list[Piece] = []
        self._open = bytearray()

    def add(self, fragment: bytes) -> int:
        """Append a fragment. Returns its length."""
        self._open += fragment
        if len(self._open) >= PIECE_BYTES:
            self._seal()
        return len(fragment)

    def add_text(self, text: str) -> int:
        """Append text to a JSON string. Returns its size in bytes."""
        return self.add(encode_json(text)[1:-1]) if text else 0

    def add_items(self, items: Sequence[object]) -> int:
        """Append items to a JSON array. Returns their size in bytes, with the commas between them."""
        if not items:
            return 0
        fragment = encode_json(items)[1:-1]
        return self.add(b"," + fragment if self._open or self._sealed else fragment)

    def take(self) -> list[Piece]:
        """Return all pieces in order, and forget them."""
        taken: list[Piece] = [*self._sealed, bytes(self._open)]
        self._sealed, self._open = [], bytearray()
        return taken

    def _seal(self) -> None:
        end = len(self._open) - len(self._open) % PIECE_BYTES
        with memoryview(self._open) as view:
            self._sealed += [_piece(view[start : start + PIECE_BYTES]) for start in range(0, end, PIECE_BYTES)]
        del self._open[:end]


def assembled(parts: Iterable[Piece]) -> list[Piece]:
    """Join small neighbours, so that the same bytes are in few pieces, none larger than `PIECE_BYTES` and none empty.

    No part may be larger than a piece.
    """
    pieces, small = list[Piece](), bytearray()
    for part in parts:
        if small and len(small) + len(part) > PIECE_BYTES:
            pieces.append(_piece(small))
            small.clear()
        if len(part) == PIECE_BYTES:
            pieces.append(part)
        else:
            small += part
    return [*pieces, _piece(small)] if small else pieces


def _piece(data: bytearray | memoryview) -> Piece:
    if len(data) < MAPPED_BYTES:
        return bytes(data)
    mapping = mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping[:] = data
    return memoryview(mapping).toreadonly()
