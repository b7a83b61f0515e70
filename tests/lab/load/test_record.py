"""Summaries and ratios of runs."""

from __future__ import annotations

import msgspec

from sluiceway_lab.load.record import Ratio, Run, Summary, compare, summarize
from sluiceway_lab.load.statistics import Spread


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
