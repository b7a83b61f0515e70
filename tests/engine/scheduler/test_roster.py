"""Tables that follow the states."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.request import Input, Request, State
from sluiceway.engine.scheduler.roster import Roster
from sluiceway.errors import InvariantError
from sluiceway.types import Held
from support.scheduling import engine_config, request


def roster_with(*requests: Request, n_blocks: int = 8, max_running: int = 4) -> Roster:
    """Requests that wait. Four tokens a block."""
    roster = Roster(engine_config(n_blocks=n_blocks, max_running=max_running))
    for one in requests:
        roster.enter(one)
    return roster


def test_newcomer_waits_and_holds_nothing_when_it_enters() -> None:
    """But it has a lease, which will have to be retired."""
    one = request(1)
    roster = roster_with(one)
    assert 1 in roster.queue and 1 in roster.leases and roster.live == {1: one}
    assert roster.pool.n_free == 8 and roster.n_free_seats == 4


def test_request_gets_a_slot_and_blocks_for_its_prompt_when_it_is_seated() -> None:
    """Nine tokens in blocks of four."""
    one = request(1, n_prompt=9)
    roster = roster_with(one)
    assert roster.next_to_seat() is one
    roster.seat(one)
    assert one.state is State.RUNNING and roster.seated == {1: one} and 1 not in roster.queue
    assert (roster.n_running, roster.n_free_seats, roster.leases.n_leased) == (1, 3, 3)


@pytest.mark.parametrize(("given_input", "n_running"), [(Input.PAUSE, 0), (Input.RESUME, 1)])
def test_request_keeps_what_it_holds_when_it_stays_seated(given_input: Input, n_running: int) -> None:
    """A paused one too."""
    one = request(1)
    roster = roster_with(one)
    roster.seat(one)
    one.n_computed = 4
    roster.move(one, given_input)
    assert (roster.n_running, roster.leases.n_leased, one.n_computed) == (n_running, 1, 4)


def test_slot_and_blocks_are_given_back_when_it_parks() -> None:
    """It stands nowhere but among the living."""
    one = request(1)
    roster = roster_with(one)
    roster.seat(one)
    one.n_computed = 4
    roster.move(one, Input.PARK)
    assert not roster.seated and 1 not in roster.queue and 1 in roster.live and 1 in roster.leases
    assert (roster.n_running, roster.pool.n_free, one.n_computed) == (0, 8, 0)


def test_preempted_one_stands_ahead_of_all_when_others_wait() -> None:
    """It was there before them."""
    one, two = request(1), request(2)
    roster = roster_with(one, two)
    roster.seat(one)
    roster.move(one, Input.PREEMPT)
    assert roster.next_to_seat() is one
    roster.move(one, Input.PARK)
    assert roster.next_to_seat() is two
    roster.move(one, Input.RESUME)
    assert roster.next_to_seat() is one


def test_place_in_the_queue_is_kept_when_a_wish_changes_nothing() -> None:
    """To resume what was never paused is not to jump the queue."""
    one, two = request(1), request(2)
    roster = roster_with(one, two)
    roster.move(two, Input.RESUME)
    assert roster.next_to_seat() is one


@pytest.mark.parametrize("inputs", [(), (Input.PARK,), (Input.PAUSE, Input.RESUME)])
def test_nothing_is_left_when_one_that_waits_or_is_parked_finishes(inputs: tuple[Input, ...]) -> None:
    """Out of every table, lease retired."""
    one = request(1)
    roster = roster_with(one)
    for given_input in (*inputs, Input.FINISH):
        roster.move(one, given_input)
    assert not roster.live and not len(roster.queue) and not len(roster.leases)
    assert roster.leases.released_total == 1


@pytest.mark.parametrize("inputs", [(), (Input.PAUSE,)])
def test_nothing_is_left_when_one_that_is_seated_finishes(inputs: tuple[Input, ...]) -> None:
    """Blocks and slot too."""
    one = request(1)
    roster = roster_with(one)
    roster.seat(one)
    for given_input in (*inputs, Input.FINISH):
        roster.move(one, given_input)
    assert not roster.live and not roster.seated and not len(roster.leases) and not roster.n_running
    assert roster.pool.n_free == 8 and roster.leases.released_total == 1


def test_blocks_are_fenced_when_a_step_is_in_flight() -> None:
    """With the last that was launched."""
    one = request(1)
    roster = roster_with(one)
    roster.seat(one)
    roster.launched = 1
    roster.move(one, Input.FINISH)
    assert (roster.pool.n_free, roster.leases.n_fenced) == (7, 1)
    roster.leases.settle(1)
    assert roster.pool.n_free == 8


def test_nobody_is_next_when_nobody_waits() -> None:
    """None, and no exception."""
    assert roster_with().next_to_seat() is None


def test_nobody_is_next_when_all_slots_are_taken() -> None:
    """A paused one holds its slot as well."""
    one, two = request(1), request(2)
    roster = roster_with(one, two, max_running=1)
    roster.seat(one)
    roster.move(one, Input.PAUSE)
    assert roster.next_to_seat() is None
    roster.move(one, Input.PARK)
    assert roster.next_to_seat() is two


def test_one_block_stays_for_each_that_runs_when_the_next_is_to_be_seated() -> None:
    """Five free, one runs: a prompt of five blocks waits; if nobody ran it would start."""
    one, two = request(1, n_prompt=12), request(2, n_prompt=20)
    roster = roster_with(one, two)
    roster.seat(one)
    assert roster.pool.n_free == 5 and roster.next_to_seat() is None
    roster.move(one, Input.PAUSE)
    assert roster.next_to_seat() is two


def test_seating_raises_when_the_pool_has_too_few() -> None:
    """And the request stays in the queue."""
    one = request(1, n_prompt=12)
    roster = roster_with(one, n_blocks=2)
    with pytest.raises(InvariantError):
        roster.seat(one)
    assert 1 in roster.queue


def test_no_block_is_missing_when_the_next_token_fits() -> None:
    """Five known tokens need a second block; three do not."""
    one = request(1, n_prompt=4)
    roster = roster_with(one)
    roster.seat(one)
    assert roster.n_missing_blocks(one) == 0
    one.append(1)
    assert roster.n_missing_blocks(one) == 1
    roster.cover(one)
    assert (roster.n_missing_blocks(one), roster.leases.n_leased) == (0, 2)


def test_what_one_holds_is_told_when_it_is_asked_for() -> None:
    """Its state as a word, and its blocks."""
    one = request(1, n_prompt=10)
    roster = roster_with(one)
    assert roster.held_by(one) == Held("waiting", 0)
    roster.seat(one)
    assert roster.held_by(one) == Held("running", 3)


def test_live_sequences_say_what_is_held_when_asked() -> None:
    """One line each, in order of arrival."""
    one, two = request(1, n_prompt=5), request(2)
    roster = roster_with(one, two)
    roster.seat(one)
    one.n_computed = 5
    lines = [
        (line.rid, line.state, line.known_tokens, line.computed_tokens, line.blocks) for line in roster.live_sequences()
    ]
    assert lines == [(1, "running", 5, 5, 2), (2, "waiting", 4, 0, 0)]


@pytest.mark.parametrize(("n_blocks", "room"), [(2, 2), (3, 2), (4, 6), (6, 14)])
def test_drafts_have_room_in_own_blocks_and_in_those_that_nobody_may_need(n_blocks: int, room: int) -> None:
    """Six tokens in two blocks of four; one block stays for each running request, and here one runs."""
    one = request(1, n_prompt=6)
    roster = roster_with(one, n_blocks=n_blocks)
    roster.seat(one)
    assert roster.draft_room(one) == room


def test_blocks_are_taken_for_drafts_too_when_they_are_covered() -> None:
    """Six tokens and seven drafts; what was taken covers later tokens as well."""
    one = request(1, n_prompt=6)
    roster = roster_with(one)
    roster.seat(one)
    assert roster.n_missing_blocks(one, n_drafts=7) == 2
    roster.cover(one, n_drafts=7)
    assert roster.leases.n_leased == 4
    assert roster.n_missing_blocks(one, n_drafts=7) == roster.n_missing_blocks(one) == 0
