"""Checks the invariants of the scheduler. Every broken one becomes a sentence.

I1: every accepted sequence gets exactly one end, and after the last end no sequence is live. I2: free, leased and
fenced blocks partition the pool. I3: no block of a plan in flight is free, or leased to another sequence. I4: no token
comes after an end. I5: commands are accepted for any id at any time, so the tables agree with the states.

The check costs O(blocks + live sequences). It runs in tests, in audits and when the engine becomes idle, not in every
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sluiceway.engine.scheduler.blocks import blocks_for
from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.engine.scheduler.sequence import State
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.types import BlockId, Rid


def violations(
    table: SequenceTable, in_flight: Iterable[Plan], ended: list[Rid], *, n_unfinished: int, block_tokens: int
) -> Iterator[str]:
    """Yield broken invariants. `in_flight`: plans that are not committed; `n_unfinished`: accepted minus finished."""
    yield from _ends(table, ended, n_unfinished)
    yield from _partition(table)
    yield from _in_flight(table, in_flight, block_tokens)
    yield from _tables(table)


def _ends(table: SequenceTable, ended: list[Rid], n_unfinished: int) -> Iterator[str]:
    if n_unfinished != len(table.live):
        yield f"I1: {n_unfinished} sequences have had no end, but {len(table.live)} are live"
    if len(ended) != len(set(ended)):
        yield "I1: a sequence has two ends"
    if any(rid in table.live for rid in ended):
        yield "I4: a sequence is live after its end"


def _partition(table: SequenceTable) -> Iterator[str]:
    leases = table.leases
    free = list(table.pool.free())
    leased = [block_id for _, block_ids in leases.leased() for block_id in block_ids]
    fenced = list(leases.fenced())
    if sorted(free + leased + fenced) != list(range(table.pool.n_blocks)):
        yield "I2: free, leased and fenced blocks do not partition the pool"
    if (len(leased), len(fenced)) != (leases.n_leased, leases.n_fenced):
        yield "I2: the counts of leased and fenced blocks are wrong"


def _in_flight(table: SequenceTable, in_flight: Iterable[Plan], block_tokens: int) -> Iterator[str]:
    free = set(table.pool.free())
    owner = {block_id: rid for rid, block_ids in table.leases.leased() for block_id in block_ids}
    for plan in in_flight:
        for row in plan.rows:
            for block_id in _touched(row, block_tokens):
                if block_id in free:
                    yield f"I3: block {block_id} is free and step {plan.step_id} may write it"
                elif owner.get(block_id, row.rid) != row.rid:
                    yield f"I3: block {block_id} has a new owner and step {plan.step_id} may write it"


def _touched(row: Row, block_tokens: int) -> Iterable[BlockId]:
    return row.block_ids[: blocks_for(row.start + row.n_tokens, block_tokens)]


def _tables(table: SequenceTable) -> Iterator[str]:
    """Check that each sequence is in the tables that its state implies, and in no others."""
    for rid, sequence in table.live.items():
        holds = bool(rid in table.leases and table.leases.blocks_of(rid))
        if (rid in table.queue, rid in table.with_slot, holds) != (
            sequence.is_queued,
            sequence.has_slot,
            sequence.has_slot,
        ):
            yield f"I5: sequence {rid} is {sequence.state.value}, but the tables do not agree"
    states = Counter(sequence.state for sequence in table.live.values())
    expected = (
        states[State.WAITING] + states[State.PREEMPTED],
        states[State.RUNNING] + states[State.PAUSED],
        states[State.RUNNING],
        len(table.live),
    )
    if (len(table.queue), len(table.with_slot), table.n_running, len(table.leases)) != expected:
        yield "I5: a table holds a sequence that is not live"
