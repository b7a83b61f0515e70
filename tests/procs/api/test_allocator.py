"""Large blocks go back to the system when they are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluiceway.procs.api.allocator import CLibrary, give_memory_back
from sluiceway.protocols.pieces import PIECE_BYTES

# Small blocks that live on keep the heap from shrinking at its top; after the free only those should be left.
AFTER_MANY_PIECES = f"""
import os, resource
from sluiceway.procs.api.allocator import give_memory_back
assert give_memory_back()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
bytes(40_000_000)
before = resident()
pieces, small = [], []
for _ in range(1000):
    pieces.append(os.urandom(8) * ({PIECE_BYTES} // 8))
    small.append(bytes(600))
held = resident() - before
pieces.clear()
print(held, resident() - before)
"""


class Library:
    """Answers as told, and notes what was set."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.options: dict[int, int] = {}

    def mallopt(self, param: int, value: int, /) -> int:
        self.options[param] = value
        return self.answer


def test_pieces_of_answers_are_mapped_for_themselves() -> None:
    """https://man7.org/linux/man-pages/man3/mallopt.3.html has the numbers of the options: malloc.h of glibc."""
    library = Library(1)
    assert give_memory_back(library)
    assert library.options[-3] <= PIECE_BYTES


def test_a_library_that_cannot_is_left_alone() -> None:
    """It says no, or does not know the question."""
    unknowing: CLibrary = object()  # type: ignore[assignment]
    assert not give_memory_back(Library(0)) and not give_memory_back(unknowing)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pieces_comes_back_below_blocks_that_live() -> None:
    """Also once a far larger block was freed, after which glibc by itself keeps what is smaller."""
    raw = subprocess.check_output([sys.executable, "-c", AFTER_MANY_PIECES], text=True)
    held, left = map(int, raw.split())
    assert held > 60_000_000 and left < held / 10
