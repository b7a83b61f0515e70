"""Tables that follow the states."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.sequence import Input, Sequence, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable, WaitingQueue
from sluiceway.errors import InvariantError
from sluiceway.types import Held
from support.scheduling import engine_config, request


def table_with(*requests: Sequence, n_blocks: int = 8, max_running: int = 4) -> SequenceTable:
    """Requests that wait. Four tokens a block."""
    table = SequenceTable(engine_config(n_blocks=n_blocks, max_running=max_running))
    for one in requests:
        table.enter(one)
    return table


def test_newcomer_waits_and_holds_nothing_when_it_enters() -> None:
    """But it has a lease, which will have to be retired."""
    one = request(1)
    table = table_with(one)
    assert 1 in table.queue and 1 in table.leases and table.live == {1: one}
    assert table.pool.n_free == 8 and table.n_free_slots == 4


def test_request_gets_a_slot_and_blocks_for_its_prompt_when_it_is_seated() -> None:
    """Nine tokens in blocks of four."""
    one = request(1, n_prompt=9)
    table = table_with(one)
    assert table.next_to_start() is one
    table.start(one)
    assert one.state is State.RUNNING and table.with_slot == {1: one} and 1 not in table.queue
    assert (table.n_running, table.n_free_slots, table.leases.n_leased) == (1, 3, 3)


@pytest.mark.parametrize(("given_input", "n_running"), [(Input.PAUSE, 0), (Input.RESUME, 1)])
def test_request_keeps_what_it_holds_when_it_stays_seated(given_input: Input, n_running: int) -> None:
    """A paused one too."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    one.n_computed = 4
    table.move(one, given_input)
    assert (table.n_running, table.leases.n_leased, one.n_computed) == (n_running, 1, 4)


def test_slot_and_blocks_are_given_back_when_it_parks() -> None:
    """It stands nowhere but among the living."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    one.n_computed = 4
    table.move(one, Input.PARK)
    assert not table.with_slot and 1 not in table.queue and 1 in table.live and 1 in table.leases
    assert (table.n_running, table.pool.n_free, one.n_computed) == (0, 8, 0)


def test_preempted_one_stands_ahead_of_all_when_others_wait() -> None:
    """It was there before them."""
    one, two = request(1), request(2)
    table = table_with(one, two)
    table.start(one)
    table.move(one, Input.PREEMPT)
    assert table.next_to_start() is one
    table.move(one, Input.PARK)
    assert table.next_to_start() is two
    table.move(one, Input.RESUME)
    assert table.next_to_start() is one


def test_place_in_the_queue_is_kept_when_a_wish_changes_nothing() -> None:
    """To resume what was never paused is not to jump the queue."""
    one, two = request(1), request(2)
    table = table_with(one, two)
    table.move(two, Input.RESUME)
    assert table.next_to_start() is one


@pytest.mark.parametrize("inputs", [(), (Input.PARK,), (Input.PAUSE, Input.RESUME)])
def test_nothing_is_left_when_one_that_waits_or_is_parked_finishes(inputs: tuple[Input, ...]) -> None:
    """Out of every table, lease retired."""
    one = request(1)
    table = table_with(one)
    for given_input in (*inputs, Input.FINISH):
        table.move(one, given_input)
    assert not table.live and not len(table.queue) and not len(table.leases)
    assert table.leases.released_total == 1


@pytest.mark.parametrize("inputs", [(), (Input.PAUSE,)])
def test_nothing_is_left_when_one_that_is_seated_finishes(inputs: tuple[Input, ...]) -> None:
    """Blocks and slot too."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    for given_input in (*inputs, Input.FINISH):
        table.move(one, given_input)
    assert not table.live and not table.with_slot and not len(table.leases) and not table.n_running
    assert table.pool.n_free == 8 and table.leases.released_total == 1


def test_blocks_are_fenced_when_a_step_is_in_flight() -> None:
    """With the last that was launched."""
    one = request(1)
    table = table_with(one)
    table.start(one)
    table.launched = 1
    table.move(one, Input.FINISH)
    assert (table.pool.n_free, table.leases.n_fenced) == (7, 1)
    table.leases.settle(1)
    assert table.pool.n_free == 8


def test_nobody_is_next_when_nobody_waits() -> None:
    """None, and no exception."""
    assert table_with().next_to_start() is None


def test_nobody_is_next_when_all_slots_are_taken() -> None:
    """A paused one holds its slot as well."""
    one, two = request(1), request(2)
    table = table_with(one, two, max_running=1)
    table.start(one)
    table.move(one, Input.PAUSE)
    assert table.next_to_start() is None
    table.move(one, Input.PARK)
    assert table.next_to_start() is two


def test_one_block_stays_for_each_that_runs_when_the_next_is_to_be_seated() -> None:
    """Five free, one runs: a prompt of five blocks waits; if nobody ran it would start."""
    one, two = request(1, n_prompt=12), request(2, n_prompt=20)
    table = table_with(one, two)
    table.start(one)
    assert table.pool.n_free == 5 and table.next_to_start() is None
    table.move(one, Input.PAUSE)
    assert table.next_to_start() is two


def test_seating_raises_when_the_pool_has_too_few() -> None:
    """And the request stays in the queue."""
    one = request(1, n_prompt=12)
    table = table_with(one, n_blocks=2)
    with pytest.raises(InvariantError):
        table.start(one)
    assert 1 in table.queue


def test_no_block_is_missing_when_the_next_token_fits() -> None:
    """Five known tokens need a second block; three do not."""
    one = request(1, n_prompt=4)
    table = table_with(one)
    table.start(one)
    assert table.n_missing_blocks(one) == 0
    one.append(1)
    assert table.n_missing_blocks(one) == 1
    table.cover(one)
    assert (table.n_missing_blocks(one), table.leases.n_leased) == (0, 2)


def test_what_one_holds_is_told_when_it_is_asked_for() -> None:
    """Its state as a word, and its blocks."""
    one = request(1, n_prompt=10)
    table = table_with(one)
    assert table.held_by(one) == Held("waiting", 0)
    table.start(one)
    assert table.held_by(one) == Held("running", 3)


def test_live_sequences_say_what_is_held_when_asked() -> None:
    """One line each, in order of arrival."""
    one, two = request(1, n_prompt=5), request(2)
    table = table_with(one, two)
    table.start(one)
    one.n_computed = 5
    lines = [
        (line.rid, line.state, line.known_tokens, line.computed_tokens, line.blocks) for line in table.live_sequences()
    ]
    assert lines == [(1, "running", 5, 5, 2), (2, "waiting", 4, 0, 0)]


@pytest.mark.parametrize(("n_blocks", "room"), [(2, 2), (3, 2), (4, 6), (6, 14)])
def test_drafts_have_room_in_own_blocks_and_in_those_that_nobody_may_need(n_blocks: int, room: int) -> None:
    """Six tokens in two blocks of four; one block stays for each running request, and here one runs."""
    one = request(1, n_prompt=6)
    table = table_with(one, n_blocks=n_blocks)
    table.start(one)
    assert table.draft_room(one) == room


def test_blocks_are_taken_for_drafts_too_when_they_are_covered() -> None:
    """Six tokens and seven drafts; what was taken covers later tokens as well."""
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


def test_first_come_is_first_served() -> None:
    """Order of arrival."""
    queue = WaitingQueue()
    for rid in (3, 1, 2):
        queue.push_back(request(rid))
    assert len(queue) == 3 and 1 in queue and 9 not in queue
    assert drained(queue) == [3, 1, 2]


def test_one_that_was_in_before_goes_ahead_when_it_returns() -> None:
    """The last to be pushed to the front is the first."""
    queue = WaitingQueue()
    queue.push_back(request(1))
    queue.push_front(request(2))
    queue.push_front(request(3))
    assert drained(queue) == [3, 2, 1]


def test_order_stays_when_one_leaves_from_the_middle() -> None:
    """The others do not notice."""
    queue = WaitingQueue()
    for rid in range(5):
        queue.push_back(request(rid))
    queue.remove(2)
    assert drained(queue) == [0, 1, 3, 4]


def test_nobody_is_first_when_the_queue_is_empty() -> None:
    """None, and no exception."""
    assert WaitingQueue().first() is None


def test_removal_raises_when_it_does_not_stand_here() -> None:
    """Our own bug."""
    with pytest.raises(InvariantError, match="is not in the queue"):
        WaitingQueue().remove(1)


def test_pushing_raises_when_it_stands_here_already() -> None:
    """From either end."""
    queue = WaitingQueue()
    queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_back(request(1))
    with pytest.raises(InvariantError, match="already"):
        queue.push_front(request(1))


def test_order_is_told_when_it_is_asked_for() -> None:
    """The next to be scheduled comes first."""
    queue = WaitingQueue()
    for rid in (3, 1):
        queue.push_back(request(rid))
    queue.push_front(request(2))
    assert list(queue) == [2, 3, 1]
