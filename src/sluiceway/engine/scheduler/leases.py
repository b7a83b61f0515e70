"""Which sequence holds which blocks, and the one way to release them.

A lease opens when a sequence is accepted and is retired when the sequence finishes, once: a second release raises. In
between it grows. It may also be vacated (its blocks are released, the lease stays) and grow again.

Blocks that a step in flight may still write do not return to the pool when they are released. They are fenced with the
number of the last launched step, and return when that step has settled. Lists of blocks are appended to or replaced,
never cleared: a row in flight refers to the list with which it was planned.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from sluiceway.engine.scheduler.blocks import BlockPool
from sluiceway.errors import InvariantError
from sluiceway.types import BlockId, Rid, StepId


class Leases:
    """Records the blocks of each sequence. `settled` is the last step that is over."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._held: dict[Rid, array[BlockId]] = {}
        self._fenced: deque[tuple[StepId, array[BlockId], bool]] = deque()
        self.settled: StepId = 0
        self.n_leased = 0
        self.n_fenced = 0
        self.released_total = 0
        """Retired leases whose blocks are all back in the pool."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._held

    def open(self, rid: Rid) -> None:
        """Open an empty lease. Raises `InvariantError` if the sequence has one."""
        if rid in self._held:
            raise InvariantError(f"sequence {rid} has a lease already")
        self._held[rid] = _no_blocks()

    def blocks_of(self, rid: Rid) -> Sequence[BlockId]:
        """The blocks of a sequence, in the order of their positions; the list grows with the lease."""
        return self._lease(rid)

    def grow(self, rid: Rid, n: int) -> None:
        """Add n free blocks. Raises `InvariantError` if the pool has fewer."""
        self._lease(rid).extend(self._pool.take(n))
        self.n_leased += n

    def vacate(self, rid: Rid, fence: StepId) -> None:
        """Release the blocks, and keep the lease."""
        blocks = self._lease(rid)
        self._held[rid] = _no_blocks()
        self._release(blocks, fence, is_final=False)

    def retire(self, rid: Rid, fence: StepId) -> None:
        """Release the blocks and end the lease. Raises `InvariantError` the second time."""
        blocks = self._lease(rid)
        del self._held[rid]
        self._release(blocks, fence, is_final=True)

    def settle(self, step_id: StepId) -> None:
        """Note that a step writes no more. Steps settle one by one, in the order of their launch."""
        if step_id != self.settled + 1:
            raise InvariantError(f"step {step_id} cannot settle after step {self.settled}")
        self.settled = step_id
        while self._fenced and self._fenced[0][0] <= step_id:
            _, blocks, is_final = self._fenced.popleft()
            self.n_fenced -= len(blocks)
            self._give(blocks, is_final)

    def leased(self) -> Iterator[tuple[Rid, Sequence[BlockId]]]:
        """Every lease, for the audit."""
        return iter(self._held.items())

    def fenced(self) -> Iterator[BlockId]:
        """Every fenced block, for the audit."""
        return (block_id for _, blocks, _ in self._fenced for block_id in blocks)

    def _lease(self, rid: Rid) -> array[BlockId]:
        blocks = self._held.get(rid)
        if blocks is None:
            raise InvariantError(f"sequence {rid} has no lease, or its lease was retired")
        return blocks

    def _release(self, blocks: array[BlockId], fence: StepId, *, is_final: bool) -> None:
        self.n_leased -= len(blocks)
        if fence <= self.settled:
            self._give(blocks, is_final)
            return
        self._fenced.append((fence, blocks, is_final))
        self.n_fenced += len(blocks)

    def _give(self, blocks: array[BlockId], is_final: bool) -> None:
        self._pool.give(blocks)
        self.released_total += is_final


def _no_blocks() -> array[BlockId]:
    """An empty list of 32-bit block ids: those of a step are joined as memory, however long the sequences are."""
    return array("i")
