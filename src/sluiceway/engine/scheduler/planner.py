"""Fills one step: which rows its batch has, and how many tokens each row computes.

The order is the policy. First, each running sequence with one uncomputed token gets that token, the older sequences
first, so that no new prompt delays a stream. The rest of the budget goes to sequences with more uncomputed tokens, in
order of arrival, in chunks. Then waiting sequences start, as long as there is budget. A prompt that is the only work
may use the whole budget. Beside other sequences it gets `chunk_tokens`, since all of them wait for the end of the step.
Where no sequence streams yet, all wait for the first prompt in any case, and larger chunks finish it sooner: then the
first prompt may have what it needs.

A prompt gets all its blocks when it starts; later only a growing answer needs more. If the pool runs out, the sequence
that needs a block preempts others (`preemption_order`). The blocks that it takes may still be fenced. Then it is left
out of this step, and until it has been served no other sequence gets a new block and none starts. So the oldest
sequence always advances.

Drafts come last. They use what is left of the budget, and blocks beyond one for each running sequence, so that no
sequence is preempted for a guess. A step with drafts has at most `MAX_DRAFTED_STEP_TOKENS` tokens: beside a prompt or
in a large batch each token costs time, so nothing is drafted.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable
from operator import attrgetter

from sluiceway.engine.scheduler.plan import Row
from sluiceway.engine.scheduler.sequence import Input, Sequence, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.types import StepId

MAX_DRAFTED_STEP_TOKENS = 32
"""Up to about this many tokens, reading the weights dominates the time of a step, and more tokens cost little."""


def preemption_order(with_slot: Iterable[Sequence]) -> list[Sequence]:
    """Sequences in the reverse order of preemption: the last one is preempted first.

    Paused sequences are preempted first, since no client reads them now; then running ones. Among both, the youngest
    is first.
    """
    return sorted(with_slot, key=lambda sequence: (sequence.state is State.PAUSED, sequence.arrival))


class BatchPlanner:
    """Chooses the rows of one step. Made for one call of `fill`."""

    def __init__(self, table: SequenceTable, *, step_id: StepId, max_step_tokens: int, chunk_tokens: int) -> None:
        self.rows: list[Row] = []
        self.n_preempted = 0
        self._table = table
        self._step_id = step_id
        self._budget = max_step_tokens
        self._chunk_tokens = chunk_tokens
        self._preemptible: list[Sequence] | None = None
        self._is_short = False

    def fill(self) -> None:
        """Choose the rows. Changes the table: starts and preempts sequences, and marks those that are in flight."""
        ready = sorted((r for r in self._table.with_slot.values() if r.is_ready), key=attrgetter("arrival"))
        for sequence in ready:
            # A sequence may be ready no more: another one may have taken its blocks.
            if sequence.n_uncomputed == 1 and sequence.is_ready and self._cover(sequence):
                self._add(sequence)
        streams = [self._table.with_slot[row.rid] for row in self.rows]
        if len(ready) + len(self._table.queue) > 1:
            self._budget = min(self._budget, max(self._chunk_tokens, 0 if streams else self._next_prompt(ready)))
        for sequence in ready:
            if self._budget and sequence.is_ready and sequence.n_uncomputed > 1:
                self._add(sequence)
        while self._budget and not self._is_short and (head := self._table.next_to_start()):
            self._table.start(head)
            self._add(head)
        self._speculate(streams)

    def _next_prompt(self, ready: abc.Sequence[Sequence]) -> int:
        """How many tokens the first prompt has yet to compute."""
        first = next((sequence for sequence in ready if sequence.is_ready), None) or self._table.next_to_start()
        return first.n_uncomputed if first else 0

    def _cover(self, sequence: Sequence) -> bool:
        """Lease the block that the next token needs. Returns whether the sequence has it."""
        n_missing = self._table.n_missing_blocks(sequence)
        if n_missing == 0:
            return True
        if not self._is_short:
            self._preempt_for(sequence, n_missing)
            self._is_short = self._table.pool.n_free < n_missing
        if self._is_short:
            return False
        self._table.cover(sequence)
        return True

    def _preempt_for(self, sequence: Sequence, n_blocks: int) -> None:
        """Preempt others until this many blocks are free, or will be after the steps in flight.

        A running sequence is preempted only for an older one. So the oldest can take blocks from all others and always
        advances, and no two sequences take blocks from each other in turn.
        """
        table = self._table
        while table.pool.n_free + table.leases.n_fenced < n_blocks:
            if self._preemptible is None:
                self._preemptible = preemption_order(table.with_slot.values())
            last = self._preemptible[-1] if self._preemptible else None
            if last is None or (last.state is State.RUNNING and last.arrival <= sequence.arrival):
                return
            table.move(self._preemptible.pop(), Input.PREEMPT)
            self.n_preempted += 1

    def _speculate(self, streams: abc.Sequence[Sequence]) -> None:
        """Give drafts to the rows of streams, in equal shares."""
        room = min(self._budget, MAX_DRAFTED_STEP_TOKENS - sum(row.n_tokens for row in self.rows))
        drafting = [index for index, sequence in enumerate(streams) if sequence.drafter is not None]
        for n_before, index in enumerate(drafting):
            if room < 1:
                return
            sequence, share = streams[index], -(-room // (len(drafting) - n_before))
            drafts = sequence.draft(min(share, self._table.draft_room(sequence)))
            if drafts:
                self._table.cover(sequence, len(drafts))
                self.rows[index] = self.rows[index].with_drafts(drafts)
                room -= len(drafts)

    def _add(self, sequence: Sequence) -> None:
        n_uncomputed = sequence.n_uncomputed
        n_tokens = min(n_uncomputed, self._budget)
        self._budget -= n_tokens
        self.rows.append(
            Row(
                rid=sequence.rid,
                known=sequence.known,
                start=sequence.n_computed,
                n_tokens=n_tokens,
                block_ids=self._table.leases.blocks_of(sequence.rid),
                samples=n_tokens == n_uncomputed,
                n_prompt=sequence.n_prompt,
                sampling=sequence.sampling,
                seed=sequence.seed,
            )
        )
        sequence.in_flight = self._step_id
        sequence.was_planned = True
