"""Which sequences live, and which were admitted."""

from __future__ import annotations

import pytest

from sluiceway.errors import InvariantError
from sluiceway.response.lifecycle import CancelUpstream
from sluiceway.response.upstream import Upstream
from sluiceway.types import FinishReason


def test_it_is_accepted_when_all_are() -> None:
    """Each says so once."""
    upstream = Upstream([1, 2])
    seen = [upstream.is_accepted]
    for _ in range(2):
        upstream.accepted()
        seen.append(upstream.is_accepted)
    assert seen == [False, False, True]


def test_a_sequence_that_has_ended_does_not_live() -> None:
    """It ends once."""
    upstream = Upstream([1, 2])
    assert upstream.has_but(1)
    upstream.settle(1)
    assert not upstream.has_but(2) and list(upstream) == [2] and upstream
    upstream.settle(2)
    assert not upstream
    with pytest.raises(InvariantError, match="sequence 2 ended"):
        upstream.settle(2)


def test_only_what_lives_is_cancelled() -> None:
    """And once."""
    upstream = Upstream([1, 2])
    upstream.settle(1)
    assert upstream.cancel(FinishReason.DRAINING) == (CancelUpstream((2,), FinishReason.DRAINING),)
    assert upstream.cancel(FinishReason.CANCELLED) == () and not upstream


def test_what_is_not_held_need_not_be_cancelled() -> None:
    """The whole request was refused there."""
    upstream = Upstream([1, 2])
    upstream.forget()
    assert upstream.cancel(FinishReason.ERROR) == ()
