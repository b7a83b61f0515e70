"""All live sequences, the queue of those that wait, and what each one holds.

One method, `move`, keeps the tables in step: all live sequences; those in the queue; those with a slot, which also have
blocks. The state of a sequence says whether it is in the queue and whether it has a slot (see `sequence`). `move`
compares both before and after the change. So blocks are released here and nowhere else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sluiceway.config import EngineConfig
from sluiceway.engine.scheduler.blocks import BlockPool, blocks_for
from sluiceway.engine.scheduler.leases import Leases
from sluiceway.engine.scheduler.sequence import Input, Sequence, State
from sluiceway.errors import InvariantError
from sluiceway.types import Held, LiveSequence, Rid, StepId


class WaitingQueue:
    """The sequences that wait to be scheduled: first come, first served. Any may leave at any time, in O(1)."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[Rid, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._sequences

    def __iter__(self) -> Iterator[Rid]:
        """The next to be scheduled comes first."""
        return iter(self._sequences)

    def push_back(self, sequence: Sequence) -> None:
        """Add a new sequence at the end. Raises `InvariantError` if it is in the queue already."""
        if sequence.rid in self._sequences:
            raise InvariantError(f"sequence {sequence.rid} is in the queue already")
        self._sequences[sequence.rid] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """Add a sequence that was scheduled before, at the front. Raises `InvariantError` if it is there already."""
        self.push_back(sequence)
        self._sequences.move_to_end(sequence.rid, last=False)

    def remove(self, rid: Rid) -> None:
        """Remove a sequence from any place. Raises `InvariantError` if it is not in the queue."""
        if self._sequences.pop(rid, None) is None:
            raise InvariantError(f"sequence {rid} is not in the queue")

    def first(self) -> Sequence | None:
        """The next sequence to be scheduled; it stays in the queue."""
        return next(iter(self._sequences.values()), None)


class SequenceTable:
    """The tables of live sequences. `launched` is the fence: the last step that may still write any block."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_running = config.max_running
        self._block_tokens = config.block_tokens
        self.pool = BlockPool(config.n_blocks)
        self.leases = Leases(self.pool)
        self.queue = WaitingQueue()
        self.live: dict[Rid, Sequence] = {}
        self.with_slot: dict[Rid, Sequence] = {}
        self.n_running = 0
        self.launched: StepId = 0

    @property
    def n_free_slots(self) -> int:
        """How many more sequences may have a slot."""
        return self._max_running - len(self.with_slot)

    def enter(self, sequence: Sequence) -> None:
        """Add a new sequence at the end of the queue."""
        self.leases.open(sequence.rid)
        self.live[sequence.rid] = sequence
        self.queue.push_back(sequence)

    def move(self, sequence: Sequence, given: Input) -> None:
        """Change the state of a sequence, and with it the tables and what the sequence holds."""
        was_queued, had_slot = sequence.is_queued, sequence.has_slot
        self.n_running -= sequence.state is State.RUNNING
        sequence.receive(given)
        self.n_running += sequence.state is State.RUNNING
        if was_queued and not sequence.is_queued:
            self.queue.remove(sequence.rid)
        if had_slot and not sequence.has_slot:
            del self.with_slot[sequence.rid]
            sequence.forget_computed()
            self.leases.vacate(sequence.rid, fence=self.launched)
        if sequence.is_queued and not was_queued:
            self.queue.push_front(sequence)
        if sequence.state is State.FINISHED:
            del self.live[sequence.rid]
            self.leases.retire(sequence.rid, fence=self.launched)

    def next_to_start(self) -> Sequence | None:
        """The head of the queue, if it can start now.

        It must leave one free block for each running sequence, so that its start does not cause a preemption soon
        after. Without running sequences it needs no such block: every sequence that was accepted can start at some
        time.
        """
        sequence = self.queue.first()
        if sequence is None or self.n_free_slots < 1:
            return None
        n_blocks = self.n_missing_blocks(sequence) + self.n_running
        return sequence if n_blocks <= self.pool.n_free else None

    def start(self, sequence: Sequence) -> None:
        """Give the sequence a slot, and blocks for all known tokens. Raises `InvariantError` without enough blocks."""
        self.cover(sequence)
        self.move(sequence, Input.SCHEDULE)
        self.with_slot[sequence.rid] = sequence

    def n_missing_blocks(self, sequence: Sequence, n_drafts: int = 0) -> int:
        """How many blocks its known tokens and `n_drafts` drafts need beyond those that it has."""
        n_held = len(self.leases.blocks_of(sequence.rid))
        return max(0, blocks_for(len(sequence.known) + n_drafts, self._block_tokens) - n_held)

    def cover(self, sequence: Sequence, n_drafts: int = 0) -> None:
        """Lease the missing blocks. Raises `InvariantError` if the pool has fewer."""
        self.leases.grow(sequence.rid, self.n_missing_blocks(sequence, n_drafts))

    def draft_room(self, sequence: Sequence) -> int:
        """How many drafts fit after its known tokens while one block stays free for each running sequence."""
        n_spare = max(0, self.pool.n_free - self.n_running)
        n_blocks = len(self.leases.blocks_of(sequence.rid)) + n_spare
        return n_blocks * self._block_tokens - len(sequence.known)

    def held_by(self, sequence: Sequence) -> Held:
        """What the sequence holds now."""
        return Held(sequence.state.value, len(self.leases.blocks_of(sequence.rid)))

    def live_sequences(self) -> tuple[LiveSequence, ...]:
        """Every live sequence and what it holds, in order of arrival."""
        return tuple(
            LiveSequence(
                rid=sequence.rid,
                state=sequence.state.value,
                known_tokens=len(sequence.known),
                computed_tokens=sequence.n_computed,
                blocks=len(self.leases.blocks_of(sequence.rid)),
            )
            for sequence in self.live.values()
        )
