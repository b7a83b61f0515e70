"""A whole answer in pieces of a bounded size, made as it comes."""

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


def test_what_was_added_is_taken_once_in_order() -> None:
    """Whatever its size, in pieces that are full but for the last; how much it is was said when it came."""
    part = JsonPieces()
    fragments = [b"a" * 10, b"b" * (3 * PIECE_BYTES), b"", b"c" * PIECE_BYTES]
    assert [part.add(fragment) for fragment in fragments] == [len(fragment) for fragment in fragments]
    *full, last = part.take()
    assert b"".join([*full, last]) == b"".join(fragments)
    assert {len(piece) for piece in full} == {PIECE_BYTES} and len(last) == 10
    assert part.take() == [b""]


@pytest.mark.parametrize("text", ["", "abc", 'a"\\\n\u2028é', "\U0001f600" * 3])
def test_text_that_comes_by_characters_is_encoded_as_at_once(text: str) -> None:
    """To the byte."""
    part = JsonPieces()
    n_bytes = sum(part.add_text(character) for character in ["", *text])
    raw = b'"%b"' % b"".join(part.take())
    assert raw == encode_json(text) and n_bytes == len(raw) - 2


def test_items_have_commas_between_them_however_they_come() -> None:
    """The first has none before it, also where a full piece was sealed in between."""
    part = JsonPieces()
    long = "x" * (PIECE_BYTES - 2)
    n_bytes = sum(part.add_items(items) for items in ([], [long], [], [1, 2], [{"a": None}]))
    raw = b"[%b]" % b"".join(part.take())
    assert json.loads(raw) == [long, 1, 2, {"a": None}] and n_bytes == len(raw) - 2


def test_small_parts_are_joined_and_full_ones_kept() -> None:
    """Nothing is copied that is a piece already, no piece is empty, and none is too large."""
    full, half = b"f" * PIECE_BYTES, b"h" * (PIECE_BYTES // 2)
    parts = [b"", full, b"a", b"b", full, half, half, b"c", full]
    pieces = assembled(parts)
    assert pieces == [full, b"ab", full, half + half, b"c", full]
    assert pieces[0] is full
    assert assembled([b"{", b"", b"}"]) == [b"{}"]


def test_large_pieces_lie_outside_of_the_heap() -> None:
    """However they came to be; small ones do not, since a mapping has whole pages. No piece can be changed."""
    part = JsonPieces()
    part.add(b"x" * (2 * PIECE_BYTES + 1))
    sealed, _, rest = part.take()
    (joined,) = assembled([b"a" * (MAPPED_BYTES - 1), b"b"])
    for piece in (sealed, joined):
        assert isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap) and piece.readonly
    (small,) = assembled([b"a" * (MAPPED_BYTES - 2), b"b"])
    assert isinstance(small, bytes) and isinstance(rest, bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pieces_comes_back_below_blocks_that_live() -> None:
    """Small blocks between them would keep a heap from shrinking at its top."""
    raw = subprocess.check_output([sys.executable, "-c", AFTER_MANY_PIECES], text=True)
    held, left = map(int, raw.split())
    assert held > 60_000_000 and left < held / 10
