"""The pool of blocks."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.blocks import BlockPool, blocks_for
from sluiceway.errors import InvariantError


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_are_rounded_up_when_tokens_do_not_fill_them(n_tokens: int, n_blocks: int) -> None:
    """A block that is begun counts."""
    assert blocks_for(n_tokens, 16) == n_blocks


def test_every_block_is_free_when_the_pool_is_new() -> None:
    """All ids, each once."""
    pool = BlockPool(5)
    assert pool.n_free == 5
    assert sorted(pool.free()) == [0, 1, 2, 3, 4]


def test_blocks_are_not_free_when_they_were_taken() -> None:
    """What was taken and what is free partition the pool."""
    pool = BlockPool(5)
    taken = pool.take(3)
    assert len(taken) == 3
    assert sorted([*taken, *pool.free()]) == [0, 1, 2, 3, 4]


def test_nothing_is_taken_when_nothing_is_asked() -> None:
    """Zero is an ordinary number."""
    pool = BlockPool(2)
    assert pool.take(0) == []
    assert pool.n_free == 2


def test_blocks_can_be_taken_again_when_they_were_given_back() -> None:
    """The pool is whole after a round trip."""
    pool = BlockPool(3)
    pool.give(pool.take(3))
    assert sorted(pool.take(3)) == [0, 1, 2]


def test_taking_raises_when_too_few_are_free() -> None:
    """And nothing is taken."""
    pool = BlockPool(2)
    with pytest.raises(InvariantError, match="3 blocks were asked for and 2 are free"):
        pool.take(3)
    assert pool.n_free == 2


def test_giving_raises_when_a_block_is_free_already() -> None:
    """A second release is a bug, and is found at once."""
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give(taken)
    with pytest.raises(InvariantError, match="second time"):
        pool.give(taken)
    assert pool.n_free == 2
