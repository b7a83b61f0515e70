"""The verdicts of `leak`, from invented counters. `test_registry` runs the experiment."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sluiceway_lab.experiments.leak import drawn_habits, figures_of, held_of, verdicts
from sluiceway_lab.experiments.readers import CUT, Reading
from sluiceway_lab.load.record import Run
from support.labs import lab_of

IDLE = {"blocks_total": 100, "blocks_free": 90, "blocks_cached": 10, "accepted_total": 5, "released_total": 5}
TOKENS = {"generated_tokens_total": 50, "wasted_tokens_total": 0}


def stats(*, violations: int = 0, live: int = 0, sessions: int = 0, decoding: int = 0, **engine: int) -> dict[str, Any]:
    return {
        "engine": IDLE | TOKENS | engine,
        "live": [{}] * live,
        "api": {"sessions": sessions, "live": 0, "tombstones": 0, "submitted": 9},
        "tokenizer": {"encoding": 0, "decoding": decoding},
        "violations": ["broken"] * violations,
    }


def reading(n_tokens: int, end: str) -> Reading:
    return Reading(0.0, token_s=[float(n) for n in range(n_tokens)], end=end)


def test_habits_have_the_shares_of_the_question() -> None:
    habits = drawn_habits(random.Random(0), 300, 0.25)
    slow = [habit for habit in habits if habit.sleep_s]
    leavers = [habit for habit in habits if habit.n_tokens is not None]
    assert (len(habits), len(slow), len(leavers)) == (300, 45, 150)
    assert {habit.n_reads for habit in slow} == {3, 10}
    assert all(0 <= (habit.n_tokens or 0) <= 40 for habit in leavers)
    assert 50 < sum(habit.resets for habit in leavers) < 100


@pytest.mark.parametrize(
    ("account", "n"),
    [
        (stats(), 0),
        (stats(live=2), 2),
        (stats(sessions=1), 1),
        (stats(decoding=3), 3),
        (stats(blocks_free=88), 2),
        (stats() | {"tokenizer": None}, 0),
    ],
    ids=["idle", "sequences", "answers", "decoders", "blocks", "tokenizer unknown"],
)
def test_everything_that_is_held_counts(account: dict[str, Any], n: int) -> None:
    assert held_of(account) == n


CLEAN = stats(accepted_total=7, released_total=7, generated_tokens_total=60, wasted_tokens_total=1)
READINGS = [reading(6, "whole"), reading(4, "left")]


def judged(after: dict[str, Any], readings: list[Reading], *others: Run) -> list[bool | None]:
    ours = run("leaving", after, readings)
    return [verdict.stood for verdict in verdicts(lab_of(ours, *others))]


def run(scenario: str, after: dict[str, Any], readings: list[Reading]) -> Run:
    figures = {"wall_s": 1.0, **figures_of(readings, stats(), after)}
    return Run(server="s", scenario=scenario, streams=2, repeat=0, figures=figures)


def test_clean_end_supports_all_hypotheses() -> None:
    assert judged(CLEAN, READINGS) == [True, True, True]


@pytest.mark.parametrize(
    ("after", "place"),
    [
        (stats(accepted_total=7, released_total=7, live=1, generated_tokens_total=60), 0),
        (stats(accepted_total=7, released_total=7, violations=1, generated_tokens_total=60), 0),
        (stats(accepted_total=7, released_total=6, generated_tokens_total=60), 1),
        (stats(accepted_total=7, released_total=8, generated_tokens_total=60), 1),
        (stats(accepted_total=7, released_total=7, generated_tokens_total=60, wasted_tokens_total=2), 2),
    ],
    ids=["held", "rule broken", "not released", "released twice", "wasted"],
)
def test_each_fault_refutes_its_hypothesis_alone(after: dict[str, Any], place: int) -> None:
    stood = judged(after, [reading(6, "whole"), reading(4, CUT)])
    assert [number for number, one in enumerate(stood) if not one] == [place]


@pytest.mark.parametrize(("n_generated", "stood"), [(128, True), (127, False)])
def test_response_that_never_listens_is_expected_to_compute_all(n_generated: int, stood: bool) -> None:
    deaf = stats(accepted_total=7, released_total=7, generated_tokens_total=50 + n_generated)
    assert judged(CLEAN, READINGS, run("leaving, write-only", deaf, READINGS)) == [True, True, True, stood]
    leaking = run("leaving, starlette", deaf | {"live": [{}]}, READINGS)
    assert judged(CLEAN, READINGS, leaking) == [False, True, True]
