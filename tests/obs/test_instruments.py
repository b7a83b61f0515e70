"""Counters that follow others, histograms, and instruments by label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.obs.instruments import Counter, Histogram, Labelled


def test_counter_continues_when_the_followed_value_has_restarted() -> None:
    """If the followed value is lower than before, it began again at zero, so all of it is added."""
    counter = Counter()
    for value in (3, 10, 4):
        counter.follow(value)
    assert counter.value == 14


def test_counter_may_follow_a_value_and_count_itself() -> None:
    counter = Counter()
    counter.follow(3)
    counter.value += 2
    counter.value += 1
    counter.follow(4)
    assert counter.value == 7


def test_labels_with_fixed_values_refuse_other_values() -> None:
    labelled = Labelled(Counter, ("park", "drop"))
    labelled["park"].value += 1
    assert {label: counter.value for label, counter in labelled.items()} == {"park": 1, "drop": 0}
    with pytest.raises(KeyError, match="perk"):
        labelled["perk"].value += 1


def test_labels_without_fixed_values_are_made_on_first_use() -> None:
    labelled = Labelled(Counter)
    labelled["overloaded"].value += 1
    labelled["overloaded"].value += 1
    assert {label: counter.value for label, counter in labelled.items()} == {"overloaded": 2}


def test_value_equal_to_a_bound_counts_below_it() -> None:
    """Bounds are inclusive. A value above the last bound counts in the last bucket only."""
    histogram = Histogram([1.0, 2.5])
    for value in (1.0, 1.5, 2.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 1), ("2.5", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.total) == (4, 14.0)


@given(st.lists(st.floats(0, 100), max_size=50))
def test_buckets_agree_with_a_plain_count(values: list[float]) -> None:
    histogram = Histogram([0.5, 10.0, 50.0])
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.cumulative():
        assert count == sum(value <= float(bound) for value in values)
