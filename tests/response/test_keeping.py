"""What nobody reads is kept for a time."""

from __future__ import annotations

import math

from sluiceway.response.keeping import Keeping
from sluiceway.response.terms import Retention


def test_times_are_over_when_they_have_passed() -> None:
    """Counted from when the last reader left, or the response ended."""
    keeping = Keeping(Retention(grace_s=5.0, ttl_s=30.0), 1.0)
    assert [keeping.is_past_grace(now_s) for now_s in (5.9, 6.0)] == [False, True]
    assert [keeping.is_past_end(now_s) for now_s in (30.9, 31.0)] == [False, True]
    keeping.since_s = 10.0
    assert keeping.until_s == 40.0 and not keeping.is_past_grace(14.9)


def test_no_time_is_over_when_nothing_is_kept() -> None:
    """A plain response ends with its reader."""
    keeping = Keeping(None, 0.0)
    assert keeping.until_s == math.inf
    assert not keeping.is_past_grace(1e9) and not keeping.is_past_end(1e9)
