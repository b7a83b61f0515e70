"""Findings and grades."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.question import Finding, by_faults, graded, unknown
from sluiceway_lab.load.record import Grade


@pytest.mark.parametrize(
    ("faults", "blemishes", "grade", "sentence"),
    [
        ([], [], Grade.PASS, "all well"),
        ([], ["odd"], Grade.WARN, "odd"),
        (["bad"], ["odd"], Grade.FAIL, "bad; odd"),
        (["bad", "bad"], [], Grade.FAIL, "bad"),
    ],
)
def test_any_fault_fails_and_any_blemish_warns(
    faults: list[str], blemishes: list[str], grade: Grade, sentence: str
) -> None:
    assert by_faults(faults, blemishes, "all well", {"n": 1.0}) == Finding(grade, sentence, {"n": 1.0})


def test_number_is_graded_by_two_bounds() -> None:
    found = [graded(value, 1.0, 2.0) for value in (1.0, 1.1, 2.0, 2.1)]
    assert found == [Grade.PASS, Grade.WARN, Grade.WARN, Grade.FAIL]


def test_no_opinion_has_a_reason() -> None:
    assert unknown("no gauges") == Finding(Grade.UNKNOWN, "no gauges")
