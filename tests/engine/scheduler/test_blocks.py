"""The pool of blocks."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.blocks import BlockPool, blocks_for
from sluiceway.errors import InvariantError


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_tokens_that_do_not_fill_a_block_need_a_whole_one(n_tokens: int, n_blocks: int) -> None:
    assert blocks_for(n_tokens, 16) == n_blocks


def test_every_block_of_a_new_pool_is_free() -> None:
    pool = BlockPool(5)
    assert pool.n_free == 5
    assert sorted(pool.free()) == [0, 1, 2, 3, 4]


def test_taken_blocks_are_not_free() -> None:
    """Each block is either taken or free."""
    pool = BlockPool(5)
    taken = pool.take(3)
    assert len(taken) == 3
    assert sorted([*taken, *pool.free()]) == [0, 1, 2, 3, 4]


def test_taking_zero_blocks_takes_none() -> None:
    pool = BlockPool(2)
    assert pool.take(0) == []
    assert pool.n_free == 2


def test_returned_blocks_can_be_taken_again() -> None:
    pool = BlockPool(3)
    pool.give(pool.take(3))
    assert sorted(pool.take(3)) == [0, 1, 2]


def test_taking_raises_when_too_few_are_free() -> None:
    """No block is taken then."""
    pool = BlockPool(2)
    with pytest.raises(InvariantError, match="3 blocks were asked for and 2 are free"):
        pool.take(3)
    assert pool.n_free == 2


def test_giving_raises_when_a_block_is_free_already() -> None:
    """A second release is a bug of the engine."""
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give(taken)
    with pytest.raises(InvariantError, match="second time"):
        pool.give(taken)
    assert pool.n_free == 2
