"""How the C library gives memory back: large blocks at once, so that a process is as small after a crowd as before.

glibc maps blocks of 128 KiB and more for themselves and unmaps them when they are freed, but only until the first such
block is freed: then it raises that size to the size of the block, up to 32 MiB, and what may lie free at the top of its
heap to twice as much. From there on copies of a large answer come from the heap, with small blocks that live long
between them, and nothing below the topmost of these goes back to the system. That looks like a leak and is none. Sizes
that are set stay as they are set. https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import ctypes
from typing import Protocol

from sluiceway.protocols.pieces import PIECE_BYTES

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES = 1024 * 1024


class CLibrary(Protocol):
    """What is asked of it."""

    def mallopt(self, param: int, value: int, /) -> int: ...


def give_memory_back(library: CLibrary | None = None) -> bool:
    """Map pieces of answers, and all that is larger, for themselves. Returns whether the C library can do that."""
    library = ctypes.CDLL(None) if library is None else library
    try:
        mallopt = library.mallopt
    except AttributeError:  # musl and macOS have no such sizes
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, PIECE_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
