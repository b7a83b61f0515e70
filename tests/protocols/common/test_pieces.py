"""The JSON of a whole answer: pieces of a bounded size, made while its tokens come."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys

import pytest

from sluiceway.protocols.common.pieces import MAPPED_BYTES, PIECE_BYTES, JsonPieces, assembled
from sluiceway.sse.encoder import encode_json

AFTER_MANY_PIECES = """
import os, resource
from sluiceway.protocols.common.pieces import JsonPieces
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
part, small = JsonPieces(), []
for _ in range(1000):
    part.add(os.urandom(8) * 8192)
    small.append(bytes(600))
held = resident() - before
part.take()
print(held, resident() - before)
"""


def test_fragments_are_taken_once_and_in_order() -> None:
    """All pieces are full, except the last. `add` returns the size of each fragment."""
    part = JsonPieces()
    fragments = [b"a" * 10, b"b" * (3 * PIECE_BYTES), b"", b"c" * PIECE_BYTES]
    assert [part.add(fragment) for fragment in fragments] == [len(fragment) for fragment in fragments]
    *full, last = part.take()
    assert b"".join([*full, last]) == b"".join(fragments)
    assert {len(piece) for piece in full} == {PIECE_BYTES} and len(last) == 10
    assert part.take() == [b""]


@pytest.mark.parametrize("text", ["", "abc", 'a"\\\n\u2028é', "\U0001f600" * 3])
def test_text_has_the_same_json_when_it_comes_by_characters(text: str) -> None:
    part = JsonPieces()
    n_bytes = sum(part.add_text(character) for character in ["", *text])
    raw = b'"%b"' % b"".join(part.take())
    assert raw == encode_json(text) and n_bytes == len(raw) - 2


def test_items_have_commas_between_them_when_they_come_in_several_parts() -> None:
    """A comma also follows a part that filled a piece exactly."""
    part = JsonPieces()
    long = "x" * (PIECE_BYTES - 2)
    n_bytes = sum(part.add_items(items) for items in ([], [long], [], [1, 2], [{"a": None}]))
    raw = b"[%b]" % b"".join(part.take())
    assert json.loads(raw) == [long, 1, 2, {"a": None}] and n_bytes == len(raw) - 2


def test_small_parts_are_joined_and_full_pieces_are_not_copied() -> None:
    """No piece is empty or too large."""
    full, half = b"f" * PIECE_BYTES, b"h" * (PIECE_BYTES // 2)
    parts = [b"", full, b"a", b"b", full, half, half, b"c", full]
    pieces = assembled(parts)
    assert pieces == [full, b"ab", full, half + half, b"c", full]
    assert pieces[0] is full
    assert assembled([b"{", b"", b"}"]) == [b"{}"]


def test_large_pieces_are_outside_of_the_heap() -> None:
    """Full pieces and joined ones have mappings of their own. Small pieces are in the heap. No piece can be changed."""
    part = JsonPieces()
    part.add(b"x" * (2 * PIECE_BYTES + 1))
    sealed, _, rest = part.take()
    (joined,) = assembled([b"a" * (MAPPED_BYTES - 1), b"b"])
    for piece in (sealed, joined):
        assert isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap) and piece.readonly
    (small,) = assembled([b"a" * (MAPPED_BYTES - 2), b"b"])
    assert isinstance(small, bytes) and isinstance(rest, bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pieces_returns_to_the_system_while_small_blocks_stay() -> None:
    """In a heap, the small blocks between the pieces would prevent that."""
    raw = subprocess.check_output([sys.executable, "-c", AFTER_MANY_PIECES], text=True)
    held, left = map(int, raw.split())
    assert held > 60_000_000 and left < held / 10
