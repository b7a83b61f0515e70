"""Leases hold blocks, and release them once and not too early."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.blocks import BlockPool
from sluiceway.engine.scheduler.leases import Leases
from sluiceway.errors import InvariantError


def leases(n_blocks: int = 8) -> tuple[BlockPool, Leases]:
    pool = BlockPool(n_blocks)
    return pool, Leases(pool)


def test_new_lease_holds_no_blocks() -> None:
    _, table = leases()
    table.open(1)
    assert 1 in table and len(table) == 1
    assert len(table.blocks_of(1)) == 0


def test_opening_raises_when_the_sequence_has_a_lease() -> None:
    _, table = leases()
    table.open(1)
    with pytest.raises(InvariantError, match="already"):
        table.open(1)


def test_block_list_grows_in_place_when_the_lease_grows() -> None:
    """A row in flight refers to the list, so it must stay the same object."""
    pool, table = leases()
    table.open(1)
    blocks = table.blocks_of(1)
    table.grow(1, 2)
    table.grow(1, 1)
    assert len(blocks) == 3 and table.blocks_of(1) is blocks
    assert (table.n_leased, pool.n_free) == (3, 5)
    assert list(table.leased()) == [(1, blocks)]


def test_blocks_are_free_immediately_when_no_step_is_in_flight() -> None:
    pool, table = leases()
    table.open(1)
    table.grow(1, 3)
    table.retire(1, fence=0)
    assert (pool.n_free, table.n_leased, table.n_fenced, table.released_total) == (8, 0, 0, 1)
    assert 1 not in table


def test_blocks_are_fenced_until_the_last_step_that_may_write_them_has_settled() -> None:
    """Two steps are in flight, and the end of the first is not enough."""
    pool, table = leases()
    table.open(1)
    table.grow(1, 3)
    table.retire(1, fence=2)
    assert (pool.n_free, table.n_leased, table.n_fenced, table.released_total) == (5, 0, 3, 0)
    assert len(list(table.fenced())) == 3
    table.settle(1)
    assert (pool.n_free, table.n_fenced) == (5, 3)
    table.settle(2)
    assert (pool.n_free, table.n_fenced, table.released_total) == (8, 0, 1)


def test_row_in_flight_keeps_its_list_when_the_lease_ends() -> None:
    """The lease replaces its list and never clears it."""
    _, table = leases()
    table.open(1)
    table.grow(1, 2)
    blocks = table.blocks_of(1)
    table.vacate(1, fence=1)
    assert len(blocks) == 2 and len(table.blocks_of(1)) == 0


def test_vacated_lease_can_grow_again() -> None:
    """Only a retired lease counts as released."""
    pool, table = leases()
    table.open(1)
    table.grow(1, 2)
    table.vacate(1, fence=0)
    table.grow(1, 4)
    assert (pool.n_free, table.n_leased, table.released_total) == (4, 4, 0)
    table.retire(1, fence=0)
    assert (pool.n_free, table.released_total) == (8, 1)


def test_release_is_counted_after_all_its_fenced_blocks_are_free() -> None:
    """The sequence is parked and then aborted while one step is in flight."""
    _, table = leases()
    table.open(1)
    table.grow(1, 2)
    table.vacate(1, fence=1)
    table.retire(1, fence=1)
    assert table.released_total == 0
    table.settle(1)
    assert table.released_total == 1


def test_retiring_a_lease_twice_raises() -> None:
    _, table = leases()
    table.open(1)
    table.retire(1, fence=0)
    with pytest.raises(InvariantError, match="its lease was retired"):
        table.retire(1, fence=0)


@pytest.mark.parametrize("step_id", [0, 2])
def test_settling_raises_when_steps_are_out_of_order(step_id: int) -> None:
    """A step that settles early would free its blocks too early."""
    _, table = leases()
    with pytest.raises(InvariantError, match="cannot settle"):
        table.settle(step_id)
