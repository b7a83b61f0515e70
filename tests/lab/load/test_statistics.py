"""Percentiles and spreads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway_lab.load.statistics import Spread, distribution, percentile, spread_of

NUMBERS = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=40)


def test_spread_is_least_median_and_most() -> None:
    assert spread_of([3.0, 1.0, 2.0, 10.0]) == Spread(1.0, 2.5, 10.0, 4)
    assert spread_of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (10, 1.0), (11, 2.0), (50, 5.0), (90, 9.0), (99, 10.0), (100, 10.0)]
)
def test_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([float(number) for number in range(10, 0, -1)], percent) == value


@settings(derandomize=True, max_examples=60)
@given(NUMBERS, st.floats(min_value=0, max_value=100))
def test_percentile_is_not_exceeded_by_so_many(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values) - 1e-9


def test_distribution_has_a_name_for_each_point() -> None:
    assert distribution("itl", [2.0, 1.0]) == {
        "itl_min_s": 1.0,
        "itl_p50_s": 1.0,
        "itl_p90_s": 2.0,
        "itl_p99_s": 2.0,
        "itl_max_s": 2.0,
    }


def test_distribution_of_nothing_is_nothing() -> None:
    assert distribution("itl", []) == {}
