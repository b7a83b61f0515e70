"""The pool of free cache blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sluiceway.errors import InvariantError
from sluiceway.types import BlockId


def blocks_for(n_tokens: int, block_tokens: int) -> int:
    """How many blocks hold that many tokens."""
    return -(-n_tokens // block_tokens)


class BlockPool:
    """Holds the free blocks of `0 .. n_blocks - 1`. Taking or giving k blocks costs O(k)."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * n_blocks)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def free(self) -> Iterator[BlockId]:
        """The free blocks, for the audit."""
        return iter(self._free)

    def take(self, n: int) -> list[BlockId]:
        """Take n free blocks. Raises `InvariantError` if there are fewer; `n_free` says how many there are."""
        if n > len(self._free):
            raise InvariantError(f"{n} blocks were asked for and {len(self._free)} are free")
        cut = len(self._free) - n
        taken = self._free[cut:]
        del self._free[cut:]
        for block_id in taken:
            self._is_free[block_id] = 0
        return taken

    def give(self, block_ids: Collection[BlockId]) -> None:
        """Give blocks back. Raises `InvariantError` at the first one that is free already."""
        for block_id in block_ids:
            if self._is_free[block_id]:
                raise InvariantError(f"block {block_id} is given back a second time")
            self._is_free[block_id] = 1
            self._free.append(block_id)
