"""The audit finds each invariant that is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from sluiceway.engine.scheduler.audit import violations
from sluiceway.engine.scheduler.plan import Plan
from sluiceway.engine.scheduler.planner import BatchPlanner
from sluiceway.engine.scheduler.sequence import Input, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.types import Rid
from support.scheduling import engine_config, request


def busy() -> tuple[SequenceTable, list[Plan]]:
    """Return a table with one sequence in flight, one paused, one parked and one waiting."""
    table = SequenceTable(engine_config(n_blocks=10, max_running=2))
    for rid in range(4):
        table.enter(request(rid, n_prompt=6, arrival=rid))
    planner = BatchPlanner(table, step_id=1, max_step_tokens=16, chunk_tokens=16)
    planner.fill()
    table.launched = 1
    table.move(table.live[1], Input.PAUSE)
    table.move(table.live[2], Input.PARK)
    return table, [Plan(1, tuple(planner.rows), ())]


def audit(
    table: SequenceTable, in_flight: Iterable[Plan] = (), ended: list[Rid] | None = None, n_unfinished: int = 4
) -> list[str]:
    return list(violations(table, in_flight, ended or [], n_unfinished=n_unfinished, block_tokens=4))


def ends(*rids: Rid) -> list[Rid]:
    return list(rids)


def test_nothing_is_found_in_a_valid_table() -> None:
    """Also after a sequence has finished while its step is in flight."""
    table, in_flight = busy()
    assert audit(table, in_flight) == []
    table.move(table.live[0], Input.FINISH)
    assert audit(table, in_flight, ends(0), n_unfinished=3) == []


def test_missing_end_is_found_when_too_few_sequences_are_live() -> None:
    """The client of the missing sequence would wait for ever."""
    assert audit(busy()[0], n_unfinished=5) == ["I1: 5 sequences have had no end, but 4 are live"]


def test_second_end_of_a_sequence_is_found() -> None:
    assert audit(busy()[0], ended=ends(9, 9)) == ["I1: a sequence has two ends"]


def test_live_sequence_after_its_end_is_found() -> None:
    """It could still get a token."""
    assert audit(busy()[0], ended=ends(0)) == ["I4: a sequence is live after its end"]


def lose_a_block(table: SequenceTable) -> None:
    table.pool.take(1)


def count_a_fence_twice(table: SequenceTable) -> None:
    table.leases.n_fenced += 1


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lose_a_block, "I2: free, leased and fenced blocks do not partition the pool"),
        (count_a_fence_twice, "I2: the counts of leased and fenced blocks are wrong"),
    ],
)
def test_wrong_counts_of_blocks_are_found(damage: Callable[[SequenceTable], None], sentence: str) -> None:
    """In the pool, and in the counts that `/metrics` shows."""
    table, _ = busy()
    damage(table)
    assert audit(table) == [sentence]


def test_free_block_is_found_when_a_step_in_flight_may_write_it() -> None:
    """The block was released without a fence."""
    table, in_flight = busy()
    block_ids = list(in_flight[0].rows[0].block_ids)
    table.launched = 0
    table.move(table.live[0], Input.FINISH)
    assert audit(table, in_flight, n_unfinished=3) == [
        f"I3: block {block_id} is free and step 1 may write it" for block_id in block_ids
    ]


def test_new_owner_is_found_when_a_step_in_flight_may_write_its_block() -> None:
    """The block was released without a fence, and another sequence has started since."""
    table, in_flight = busy()
    block_ids = list(in_flight[0].rows[0].block_ids)
    table.launched = 0
    table.move(table.live[0], Input.FINISH)
    table.start(table.live[3])
    assert audit(table, in_flight, n_unfinished=3) == [
        f"I3: block {block_id} has a new owner and step 1 may write it" for block_id in block_ids
    ]


def test_state_that_contradicts_the_tables_is_found() -> None:
    """The sequence is parked, but its state is `waiting`."""
    table, _ = busy()
    table.live[2].state = State.WAITING
    assert "I5: sequence 2 is waiting, but the tables do not agree" in audit(table)


def test_table_entry_without_a_live_sequence_is_found() -> None:
    """No sequence would ever retire this lease."""
    table, _ = busy()
    table.leases.open(99)
    assert audit(table) == ["I5: a table holds a sequence that is not live"]
