"""The invariants, looked at: every broken one becomes a sentence.

I1 every accepted sequence gets exactly one terminal, and after the last one nothing lives. I2 free, leased and fenced
blocks partition the pool. I3 no block of a plan in flight is free, or leased to another. I4 no token after a terminal.
I5 wishes are accepted for any id at any time, which shows here as tables that agree with the states.

Costs O(blocks + live sequences): for tests, for audits and for an idle engine, not for every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sluiceway.engine.scheduler.blocks import blocks_for
from sluiceway.engine.scheduler.outputs import Outputs
from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.engine.scheduler.request import State
from sluiceway.engine.scheduler.roster import Roster
from sluiceway.types import BlockId


def violations(
    roster: Roster, in_flight: Iterable[Plan], outputs: Outputs, *, n_unfinished: int, block_tokens: int
) -> Iterator[str]:
    """`in_flight` are the plans launched and not committed; `n_unfinished` is accepted less finished."""
    yield from _terminals(roster, outputs, n_unfinished)
    yield from _partition(roster)
    yield from _in_flight(roster, in_flight, block_tokens)
    yield from _tables(roster)


def _terminals(roster: Roster, outputs: Outputs, n_unfinished: int) -> Iterator[str]:
    if n_unfinished != len(roster.live):
        yield f"I1: {n_unfinished} sequences have had no terminal and {len(roster.live)} live"
    ended = [end.rid for end in outputs.ends]
    if len(ended) != len(set(ended)):
        yield "I1: a sequence has two terminals"
    if any(rid in roster.live for rid in ended):
        yield "I4: a sequence lives after its terminal"


def _partition(roster: Roster) -> Iterator[str]:
    leases = roster.leases
    free = list(roster.pool.free())
    leased = [block_id for _, block_ids in leases.leased() for block_id in block_ids]
    fenced = list(leases.fenced())
    if sorted(free + leased + fenced) != list(range(roster.pool.n_blocks)):
        yield "I2: free, leased and fenced blocks do not partition the pool"
    if (len(leased), len(fenced)) != (leases.n_leased, leases.n_fenced):
        yield "I2: the counts of leased and fenced blocks are wrong"


def _in_flight(roster: Roster, in_flight: Iterable[Plan], block_tokens: int) -> Iterator[str]:
    free = set(roster.pool.free())
    owner = {block_id: rid for rid, block_ids in roster.leases.leased() for block_id in block_ids}
    for plan in in_flight:
        for row in plan.rows:
            for block_id in _touched(row, block_tokens):
                if block_id in free:
                    yield f"I3: block {block_id} is free and step {plan.step_id} may write it"
                elif owner.get(block_id, row.rid) != row.rid:
                    yield f"I3: block {block_id} has a new owner and step {plan.step_id} may write it"


def _touched(row: Row, block_tokens: int) -> Iterable[BlockId]:
    return row.block_ids[: blocks_for(row.start + row.n_tokens, block_tokens)]


def _tables(roster: Roster) -> Iterator[str]:
    """Each request stands where its state says, and nobody else stands anywhere."""
    for rid, request in roster.live.items():
        holds = bool(rid in roster.leases and roster.leases.blocks_of(rid))
        if (rid in roster.queue, rid in roster.seated, holds) != (
            request.is_queued,
            request.is_seated,
            request.is_seated,
        ):
            yield f"I5: sequence {rid} is {request.state.value} and stands elsewhere"
    states = Counter(request.state for request in roster.live.values())
    expected = (
        states[State.WAITING] + states[State.PREEMPTED],
        states[State.RUNNING] + states[State.PAUSED],
        states[State.RUNNING],
        len(roster.live),
    )
    if (len(roster.queue), len(roster.seated), roster.n_running, len(roster.leases)) != expected:
        yield "I5: a table holds a sequence that is not live"
