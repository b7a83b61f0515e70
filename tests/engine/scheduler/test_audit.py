"""Each invariant, broken on purpose."""

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
    """One in flight, one paused, one parked, one waiting."""
    table = SequenceTable(engine_config(n_blocks=10, max_running=2))
    for rid in range(4):
        table.enter(request(rid, n_prompt=6, arrival=rid))
    draft = BatchPlanner(table, step_id=1, max_step_tokens=16, chunk_tokens=16)
    draft.fill()
    table.launched = 1
    table.move(table.live[1], Input.PAUSE)
    table.move(table.live[2], Input.PARK)
    return table, [Plan(1, tuple(draft.rows), ())]


def look(
    table: SequenceTable, in_flight: Iterable[Plan] = (), ended: list[Rid] | None = None, n_unfinished: int = 4
) -> list[str]:
    return list(violations(table, in_flight, ended or [], n_unfinished=n_unfinished, block_tokens=4))


def ends(*rids: Rid) -> list[Rid]:
    return list(rids)


def test_nothing_is_found_when_all_is_well() -> None:
    """Busy, and after one has left while its step was in flight."""
    table, in_flight = busy()
    assert look(table, in_flight) == []
    table.move(table.live[0], Input.FINISH)
    assert look(table, in_flight, ends(0), n_unfinished=3) == []


def test_lost_terminal_is_found_when_fewer_live_than_were_accepted() -> None:
    """Somebody waits for ever."""
    assert look(busy()[0], n_unfinished=5) == ["I1: 5 sequences have had no end, but 4 are live"]


def test_second_terminal_is_found() -> None:
    """Of the same sequence."""
    assert look(busy()[0], ended=ends(9, 9)) == ["I1: a sequence has two ends"]


def test_life_after_a_terminal_is_found() -> None:
    """It could still get a token."""
    assert look(busy()[0], ended=ends(0)) == ["I4: a sequence is live after its end"]


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
def test_wrong_books_are_found(damage: Callable[[SequenceTable], None], sentence: str) -> None:
    """Blocks, and the counts that go to the metrics."""
    table, _ = busy()
    damage(table)
    assert look(table) == [sentence]


def test_free_block_is_found_when_a_step_in_flight_may_write_it() -> None:
    """A release without a fence."""
    table, in_flight = busy()
    block_ids = list(in_flight[0].rows[0].block_ids)
    table.launched = 0
    table.move(table.live[0], Input.FINISH)
    assert look(table, in_flight, n_unfinished=3) == [
        f"I3: block {block_id} is free and step 1 may write it" for block_id in block_ids
    ]


def test_new_owner_is_found_when_a_step_in_flight_may_write_its_block() -> None:
    """A release without a fence, and somebody was seated since."""
    table, in_flight = busy()
    block_ids = list(in_flight[0].rows[0].block_ids)
    table.launched = 0
    table.move(table.live[0], Input.FINISH)
    table.start(table.live[3])
    assert look(table, in_flight, n_unfinished=3) == [
        f"I3: block {block_id} has a new owner and step 1 may write it" for block_id in block_ids
    ]


def test_state_is_found_when_it_does_not_fit_the_tables() -> None:
    """It says that it waits and it stands among the parked."""
    table, _ = busy()
    table.live[2].state = State.WAITING
    assert "I5: sequence 2 is waiting, but the tables do not agree" in look(table)


def test_stranger_is_found_when_a_table_holds_one_that_is_not_live() -> None:
    """A lease that nobody will retire."""
    table, _ = busy()
    table.leases.open(99)
    assert look(table) == ["I5: a table holds a sequence that is not live"]
