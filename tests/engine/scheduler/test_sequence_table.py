"""The tables follow the states of the sequences."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.sequence import Input, Sequence, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable, WaitingQueue
from sluiceway.errors import InvariantError
from sluiceway.types import Held
from support.scheduling import engine_config, request


def table_with(*requests: Sequence, n_blocks: int = 8, max_running: int = 4) -> SequenceTable:
    """Return a table in which these sequences wait; a block has four tokens."""
    table = SequenceTable(engine_config(n_blocks=n_blocks, max_running=max_running))
    for one in requests:
        table.enter(one)
    return table


def test_new_sequence_waits_and_holds_no_blocks() -> None:
    """It has a lease, which must be retired later."""
    one = request(1)
    table = table_with(one)
    assert 1 in table.queue and 1 in table.leases and table.live == {1: one}
    assert table.pool.n_free == 8 and table.n_free_slots == 4


def test_started_sequence_gets_a_slot_and_blocks_for_its_prompt() -> None:
    """Nine tokens need three blocks of four."""
    one = request(1, n_prompt=9)
    table = table_with(one)
    assert table.next_to_start() is one
    table.start(one)
    assert one.state is State.RUNNING and table.with_slot == {1: one} and 1 not in table.queue
    assert (table.n_running, table.n_free_slots, table.leases.n_leased) == (1, 3, 3)


@pytest.mark.parametrize(("given_input", "n_running"), [(Input.PAUSE, 0), (Input.RESUME, 1)])
def test_pausing_and_resuming_keep_slot_and_blocks(given_input: Input, n_running: int) -> None:
    one = request(1)
    table = table_with(one)
    table.start(one)
    one.n_computed = 4
    table.move(one, given_input)
    assert (table.n_running, table.leases.n_leased, one.n_computed) == (n_running, 1, 4)


def test_parking_releases_slot_and_blocks() -> None:
    """A parked sequence is live, and not in the queue."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    one.n_computed = 4
    table.move(one, Input.PARK)
    assert not table.with_slot and 1 not in table.queue and 1 in table.live and 1 in table.leases
    assert (table.n_running, table.pool.n_free, one.n_computed) == (0, 8, 0)


def test_preempted_sequence_goes_to_the_front_of_the_queue() -> None:
    one, two = request(1), request(2)
    table = table_with(one, two)
    table.start(one)
    table.move(one, Input.PREEMPT)
    assert table.next_to_start() is one
    table.move(one, Input.PARK)
    assert table.next_to_start() is two
    table.move(one, Input.RESUME)
    assert table.next_to_start() is one


def test_resuming_a_waiting_sequence_keeps_its_position() -> None:
    one, two = request(1), request(2)
    table = table_with(one, two)
    table.move(two, Input.RESUME)
    assert table.next_to_start() is one


@pytest.mark.parametrize("inputs", [(), (Input.PARK,), (Input.PAUSE, Input.RESUME)])
def test_finished_sequence_without_slot_leaves_every_table(inputs: tuple[Input, ...]) -> None:
    """Its lease is retired."""
    one = request(1)
    table = table_with(one)
    for given_input in (*inputs, Input.FINISH):
        table.move(one, given_input)
    assert not table.live and not len(table.queue) and not len(table.leases)
    assert table.leases.released_total == 1


@pytest.mark.parametrize("inputs", [(), (Input.PAUSE,)])
def test_finished_sequence_with_slot_leaves_every_table(inputs: tuple[Input, ...]) -> None:
    """Its blocks and its slot are free again."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    for given_input in (*inputs, Input.FINISH):
        table.move(one, given_input)
    assert not table.live and not table.with_slot and not len(table.leases) and not table.n_running
    assert table.pool.n_free == 8 and table.leases.released_total == 1


def test_blocks_are_fenced_when_a_step_is_in_flight() -> None:
    """Their fence is the last step that was launched."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    table.launched = 1
    table.move(one, Input.FINISH)
    assert (table.pool.n_free, table.leases.n_fenced) == (7, 1)
    table.leases.settle(1)
    assert table.pool.n_free == 8


def test_no_sequence_is_next_when_the_queue_is_empty() -> None:
    assert table_with().next_to_start() is None


def test_no_sequence_is_next_when_all_slots_are_taken() -> None:
    """A paused sequence holds its slot too."""
    one, two = request(1), request(2)
    table = table_with(one, two, max_running=1)
    table.start(one)
    table.move(one, Input.PAUSE)
    assert table.next_to_start() is None
    table.move(one, Input.PARK)
    assert table.next_to_start() is two


def test_starting_leaves_one_free_block_for_each_running_sequence() -> None:
    """Five blocks are free and one sequence runs, so a prompt of five blocks waits. If none ran, it would start."""
    one, two = request(1, n_prompt=12), request(2, n_prompt=20)
    table = table_with(one, two)
    table.start(one)
    assert table.pool.n_free == 5 and table.next_to_start() is None
    table.move(one, Input.PAUSE)
    assert table.next_to_start() is two


def test_starting_raises_when_the_pool_has_too_few_blocks() -> None:
    """The sequence stays in the queue."""
    one = request(1, n_prompt=12)
    table = table_with(one, n_blocks=2)
    with pytest.raises(InvariantError):
        table.start(one)
    assert 1 in table.queue


def test_known_tokens_beyond_the_last_block_need_another_block() -> None:
    """Five known tokens need a second block; four do not."""
    one = request(1, n_prompt=4)
    table = table_with(one)
    table.start(one)
    assert table.n_missing_blocks(one) == 0
    one.append(1)
    assert table.n_missing_blocks(one) == 1
    table.cover(one)
    assert (table.n_missing_blocks(one), table.leases.n_leased) == (0, 2)


def test_held_by_gives_state_and_blocks() -> None:
    one = request(1, n_prompt=10)
    table = table_with(one)
    assert table.held_by(one) == Held("waiting", 0)
    table.start(one)
    assert table.held_by(one) == Held("running", 3)


def test_live_sequences_are_listed_in_order_of_arrival() -> None:
    one, two = request(1, n_prompt=5), request(2)
    table = table_with(one, two)
    table.start(one)
    one.n_computed = 5
    lines = [
        (line.rid, line.state, line.known_tokens, line.computed_tokens, line.blocks) for line in table.live_sequences()
    ]
    assert lines == [(1, "running", 5, 5, 2), (2, "waiting", 4, 0, 0)]


@pytest.mark.parametrize(("n_blocks", "room"), [(2, 2), (3, 2), (4, 6), (6, 14)])
def test_drafts_have_room_in_own_blocks_and_in_spare_blocks(n_blocks: int, room: int) -> None:
    """Six tokens hold two blocks of four. One free block is kept for each running sequence, and one runs."""
    one = request(1, n_prompt=6)
    table = table_with(one, n_blocks=n_blocks)
    table.start(one)
    assert table.draft_room(one) == room


def test_cover_takes_blocks_for_drafts_too() -> None:
    """Six tokens and seven drafts need four blocks. Later tokens can use them as well."""
    one = request(1, n_prompt=6)
    table = table_with(one)
    table.start(one)
    assert table.n_missing_blocks(one, n_drafts=7) == 2
    table.cover(one, n_drafts=7)
    assert table.leases.n_leased == 4
    assert table.n_missing_blocks(one, n_drafts=7) == table.n_missing_blocks(one) == 0


# The queue.


def drained(queue: WaitingQueue) -> list[int]:
    rids = []
    while (head := queue.first()) is not None:
        queue.remove(head.rid)
        rids.append(head.rid)
    return rids


def test_queue_keeps_the_order_of_arrival() -> None:
    queue = WaitingQueue()
    for rid in (3, 1, 2):
        queue.push_back(request(rid))
    assert len(queue) == 3 and 1 in queue and 9 not in queue
    assert drained(queue) == [3, 1, 2]


def test_push_front_puts_a_sequence_before_all_others() -> None:
    queue = WaitingQueue()
    queue.push_back(request(1))
    queue.push_front(request(2))
    queue.push_front(request(3))
    assert drained(queue) == [3, 2, 1]


def test_removal_from_the_middle_keeps_the_order() -> None:
    queue = WaitingQueue()
    for rid in range(5):
        queue.push_back(request(rid))
    queue.remove(2)
    assert drained(queue) == [0, 1, 3, 4]


def test_empty_queue_has_no_first_sequence() -> None:
    assert WaitingQueue().first() is None


def test_removal_raises_when_the_sequence_is_not_in_the_queue() -> None:
    with pytest.raises(InvariantError, match="is not in the queue"):
        WaitingQueue().remove(1)


def test_pushing_raises_when_the_sequence_is_in_the_queue_already() -> None:
    """At either end."""
    queue = WaitingQueue()
    queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_front(request(1))


def test_iteration_starts_with_the_next_sequence_to_start() -> None:
    queue = WaitingQueue()
    for rid in (3, 1):
        queue.push_back(request(rid))
    queue.push_front(request(2))
    assert list(queue) == [2, 3, 1]
