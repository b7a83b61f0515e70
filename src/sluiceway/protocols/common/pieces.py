"""JSON of a whole answer in pieces: made while its tokens come, and never one object that holds all of it.

Building a large body at its end would hold up the loop, and joining it would take its memory twice. So each part of it
(the text, the token ids, the log-probabilities of a choice) is encoded as it comes, and kept in pieces of a bounded
size. All readers of the answer share them.

Large pieces lie outside of the heap, in mappings of their own. From its heap glibc gives memory back only at the top,
and small blocks that live long lie between large ones that do not: an answer of 150 MiB left 120 MiB behind. A mapping
goes back to the system with the last reference to it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

from sluiceway.sse.encoder import encode_json
from sluiceway.types import Piece

PIECE_BYTES = 64 * 1024
"""No piece is larger."""
MAPPED_BYTES = 16 * 1024
"""Smaller pieces lie in the heap: a mapping has whole pages, and takes a call of the system."""


class JsonPieces:
    """One part of an answer."""

    __slots__ = ("_open", "_sealed")

    def __init__(self) -> None:
        self._sealed: list[Piece] = []
        self._open = bytearray()

    def add(self, fragment: bytes) -> int:
        """Append it. Returns its length."""
        self._open += fragment
        if len(self._open) >= PIECE_BYTES:
            self._seal()
        return len(fragment)

    def add_text(self, text: str) -> int:
        """More characters of one JSON string. Returns how many bytes they are."""
        return self.add(encode_json(text)[1:-1]) if text else 0

    def add_items(self, items: Sequence[object]) -> int:
        """More items of one JSON array. Returns how many bytes they are, with the commas between them."""
        if not items:
            return 0
        fragment = encode_json(items)[1:-1]
        return self.add(b"," + fragment if self._open or self._sealed else fragment)

    def take(self) -> list[Piece]:
        """All of it, in order. From here on the part is empty."""
        taken: list[Piece] = [*self._sealed, bytes(self._open)]
        self._sealed, self._open = [], bytearray()
        return taken

    def _seal(self) -> None:
        end = len(self._open) - len(self._open) % PIECE_BYTES
        with memoryview(self._open) as view:
            self._sealed += [_piece(view[start : start + PIECE_BYTES]) for start in range(0, end, PIECE_BYTES)]
        del self._open[:end]


def assembled(parts: Iterable[Piece]) -> list[Piece]:
    """The same bytes in few pieces, none larger than `PIECE_BYTES`: small neighbours are joined, full pieces kept.

    No part is larger than a piece, and no piece is empty.
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
