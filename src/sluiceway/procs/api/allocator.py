"""How memory goes back to the system when large answers have gone.

glibc keeps what was freed: its heap shrinks only at its top, and small blocks that live long lie between large ones
that do not. So a process stays as large as it was with its largest answers, which looks like a leak and is none. To
*trim* the heap gives whole pages back wherever they are: https://man7.org/linux/man-pages/man3/malloc_trim.3.html. That
takes some four milliseconds for 16 MiB, so it is done whenever so much was released, and not once for all of it.
"""

from __future__ import annotations

import ctypes

RELEASED_BYTES = 16 * 1024 * 1024
"""After so much was released the heap is trimmed."""


class Heap:
    """That of this process. `library` is its C library."""

    def __init__(self, library: object) -> None:
        self._trim = getattr(library, "malloc_trim", None)  # musl and macOS have none, and give back by themselves
        self._trimmed_at = 0

    def released(self, n_bytes: int) -> None:
        """So much was released since the start; trim if that is much more than when it was trimmed last."""
        if n_bytes - self._trimmed_at >= RELEASED_BYTES:
            self._trimmed_at = n_bytes
            if self._trim is not None:
                self._trim(0)


def own_heap() -> Heap:
    return Heap(ctypes.CDLL(None))
