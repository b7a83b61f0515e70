"""What is held, and that it comes back once and not too early."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.blocks import BlockPool
from sluiceway.engine.scheduler.leases import Leases
from sluiceway.errors import InvariantError


def leases(n_blocks: int = 8) -> tuple[BlockPool, Leases]:
    pool = BlockPool(n_blocks)
    return pool, Leases(pool)


def test_lease_holds_nothing_when_it_was_opened() -> None:
    """It is there, and empty."""
    _, books = leases()
    books.open(1)
    assert 1 in books and len(books) == 1
    assert len(books.blocks_of(1)) == 0


def test_opening_raises_when_there_is_a_lease() -> None:
    """One lease for each sequence."""
    _, books = leases()
    books.open(1)
    with pytest.raises(InvariantError, match="already"):
        books.open(1)


def test_block_list_grows_in_place_when_the_lease_grows() -> None:
    """A row in flight refers to the list, so it must stay the same object."""
    pool, books = leases()
    books.open(1)
    blocks = books.blocks_of(1)
    books.grow(1, 2)
    books.grow(1, 1)
    assert len(blocks) == 3 and books.blocks_of(1) is blocks
    assert (books.n_leased, pool.n_free) == (3, 5)
    assert list(books.leased()) == [(1, blocks)]


def test_blocks_are_free_at_once_when_no_step_is_in_flight() -> None:
    """The fence has settled already."""
    pool, books = leases()
    books.open(1)
    books.grow(1, 3)
    books.retire(1, fence=0)
    assert (pool.n_free, books.n_leased, books.n_fenced, books.released_total) == (8, 0, 0, 1)
    assert 1 not in books


def test_blocks_are_fenced_until_the_last_step_that_may_write_them_has_settled() -> None:
    """Two steps in flight: the first one that settles is not enough."""
    pool, books = leases()
    books.open(1)
    books.grow(1, 3)
    books.retire(1, fence=2)
    assert (pool.n_free, books.n_leased, books.n_fenced, books.released_total) == (5, 0, 3, 0)
    assert len(list(books.fenced())) == 3
    books.settle(1)
    assert (pool.n_free, books.n_fenced) == (5, 3)
    books.settle(2)
    assert (pool.n_free, books.n_fenced, books.released_total) == (8, 0, 1)


def test_row_in_flight_keeps_its_list_when_the_lease_ends() -> None:
    """Lists are replaced, never cleared."""
    _, books = leases()
    books.open(1)
    books.grow(1, 2)
    blocks = books.blocks_of(1)
    books.vacate(1, fence=1)
    assert len(blocks) == 2 and len(books.blocks_of(1)) == 0


def test_lease_can_grow_again_when_it_was_vacated() -> None:
    """To vacate is no release for good: only retiring counts."""
    pool, books = leases()
    books.open(1)
    books.grow(1, 2)
    books.vacate(1, fence=0)
    books.grow(1, 4)
    assert (pool.n_free, books.n_leased, books.released_total) == (4, 4, 0)
    books.retire(1, fence=0)
    assert (pool.n_free, books.released_total) == (8, 1)


def test_release_is_not_counted_before_blocks_vacated_earlier_are_back() -> None:
    """Parked, then aborted, both while a step is in flight."""
    _, books = leases()
    books.open(1)
    books.grow(1, 2)
    books.vacate(1, fence=1)
    books.retire(1, fence=1)
    assert books.released_total == 0
    books.settle(1)
    assert books.released_total == 1


def test_second_release_raises_when_a_lease_is_retired_twice() -> None:
    """Exactly once."""
    _, books = leases()
    books.open(1)
    books.retire(1, fence=0)
    with pytest.raises(InvariantError, match="its lease was retired"):
        books.retire(1, fence=0)


@pytest.mark.parametrize("step_id", [0, 2])
def test_settling_raises_when_steps_are_out_of_order(step_id: int) -> None:
    """A step that settles early would lift fences too early."""
    _, books = leases()
    with pytest.raises(InvariantError, match="cannot settle"):
        books.settle(step_id)
