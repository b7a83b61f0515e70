"""Values are counted by upper bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.obs.histogram import Histogram


def test_a_value_on_a_bound_counts_below_it() -> None:
    """Bounds are inclusive, and what is over the last one counts in the last bucket only."""
    histogram = Histogram([1.0, 2.5])
    for value in (1.0, 1.5, 2.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 1), ("2.5", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.total) == (4, 14.0)


@given(st.lists(st.floats(0, 100), max_size=50))
def test_buckets_hold_what_a_plain_count_finds(values: list[float]) -> None:
    """For any values."""
    histogram = Histogram([0.5, 10.0, 50.0])
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(value <= float(bound) for value in values)
