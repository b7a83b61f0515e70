"""Memory goes back to the system when it was released."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluiceway.procs.api.allocator import RELEASED_BYTES, Heap

# Small blocks that live on keep the heap from shrinking at its top.
AFTER_MANY_PIECES = """
import os, resource
from sluiceway.procs.api.allocator import own_heap
heap = own_heap()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
bytes(20_000_000)
before = resident()
pieces, small = [], []
for _ in range(1000):
    pieces.append(os.urandom(8) * 8192)
    small.append(bytes(600))
held = resident() - before
pieces.clear()
heap.released(1000 * 65536)
print(held, resident() - before)
"""


class Library:
    """Notes how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def malloc_trim(self, pad: int) -> int:
        self.asked.append(pad)
        return 1


def test_the_heap_is_trimmed_whenever_much_was_released() -> None:
    """And not in between: it takes its time."""
    library = Library()
    heap, n_asked = Heap(library), list[int]()
    for n_bytes in (0, RELEASED_BYTES - 1, RELEASED_BYTES, RELEASED_BYTES + 1, 3 * RELEASED_BYTES, 3 * RELEASED_BYTES):
        heap.released(n_bytes)
        n_asked.append(len(library.asked))
    assert n_asked == [0, 0, 1, 1, 2, 2]


def test_a_library_that_cannot_is_left_alone() -> None:
    """Nothing is asked of it."""
    Heap(object()).released(RELEASED_BYTES)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_pieces_comes_back_below_blocks_that_live() -> None:
    """Also once a far larger block was freed, after which glibc by itself keeps what is smaller."""
    raw = subprocess.check_output([sys.executable, "-c", AFTER_MANY_PIECES], text=True)
    held, left = map(int, raw.split())
    assert held > 60_000_000 and left < held / 10
