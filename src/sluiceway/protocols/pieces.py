"""JSON of a whole answer in pieces: made while its tokens come, and never one object that holds all of it.

Building a large body at its end would hold up the loop, and joining it would take its memory twice. So each part of it
(the text, the token ids, the log-probabilities of a choice) is encoded as it comes, and kept in pieces of a bounded
size. All readers of the answer share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluiceway.sse.encoder import encode_json

PIECE_BYTES = 64 * 1024
"""No piece is larger."""


class Pieces:
    """One part of an answer."""

    __slots__ = ("_open", "_sealed")

    def __init__(self) -> None:
        self._sealed: list[bytes] = []
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

    def take(self) -> list[bytes]:
        """All of it, in order. From here on the part is empty."""
        taken = [*self._sealed, bytes(self._open)]
        self._sealed, self._open = [], bytearray()
        return taken

    def _seal(self) -> None:
        end = len(self._open) - len(self._open) % PIECE_BYTES
        with memoryview(self._open) as view:
            self._sealed += [bytes(view[start : start + PIECE_BYTES]) for start in range(0, end, PIECE_BYTES)]
        del self._open[:end]


def assembled(parts: Iterable[bytes]) -> list[bytes]:
    """The same bytes in few pieces, none larger than `PIECE_BYTES`: small neighbours are joined, full pieces kept.

    No part is larger than a piece, and no piece is empty.
    """
    pieces, small = list[bytes](), bytearray()
    for part in parts:
        if small and len(small) + len(part) > PIECE_BYTES:
            pieces.append(bytes(small))
            small = bytearray()
        if len(part) == PIECE_BYTES:
            pieces.append(part)
        else:
            small += part
    return [*pieces, bytes(small)] if small else pieces
