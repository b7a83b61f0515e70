"""Summaries of runs, percentiles and comparisons."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway_lab.load.record import (
    Ratio,
    Run,
    Spread,
    Summary,
    compare,
    distribution,
    percentile,
    spread_of,
    summarize,
)

NUMBERS = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=40)


def run(server: str, repeat: int, *, streams: int = 4, errors: int = 0, **figures: float) -> Run:
    return Run(
        server=server, scenario="together", streams=streams, repeat=repeat, figures=figures, errors=["no"] * errors
    )


def test_summary_is_over_the_repeats_of_one_scenario_on_one_server() -> None:
    runs = [run("a", 0, speed=1.0), run("b", 0, speed=9.0), run("a", 1, speed=3.0, itl=2.0, errors=2)]
    assert summarize(runs) == [
        Summary(
            server="a",
            scenario="together",
            streams=4,
            figures={"speed": Spread(1.0, 2.0, 3.0, 2), "itl": Spread(2.0, 2.0, 2.0, 1)},
            n_errors=2,
        ),
        Summary(server="b", scenario="together", streams=4, figures={"speed": Spread(9.0, 9.0, 9.0, 1)}, n_errors=0),
    ]


def test_levels_are_summarized_apart() -> None:
    runs = [run("a", 0, streams=1), run("a", 0, streams=2), msgspec.structs.replace(run("a", 0), scenario="alone")]
    assert [(one.scenario, one.streams) for one in summarize(runs)] == [("together", 1), ("together", 2), ("alone", 4)]


def test_ratio_is_of_interleaved_runs() -> None:
    """A run without a counterpart is left out, and so is a division by zero."""
    runs = [
        run("a", 0, speed=2.0, ITL=1.0),
        run("b", 0, speed=1.0, ITL=0.0),
        run("b", 1, speed=4.0),
        run("a", 1, speed=4.0, only=1.0),
        run("a", 2, speed=7.0),
    ]
    assert compare(runs, "a", "b") == [
        Ratio(scenario="together", streams=4, figures={"speed": Spread(1.0, 1.5, 2.0, 2)})
    ]


def test_record_survives_its_file() -> None:
    summaries = summarize([run("a", 0, speed=1.0)])
    assert msgspec.json.decode(msgspec.json.encode(summaries), type=list[Summary]) == summaries


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
def test_percentile_is_not_exceeded_by_its_share(values: list[float], percent: float) -> None:
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
