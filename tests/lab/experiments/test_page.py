"""The page of the lab agrees with its records."""

from __future__ import annotations

from sluiceway_lab.experiments.registry import experiments
from support.lab_page import RECORDS, page, record_of, stems_of


def test_page_is_up_to_date() -> None:
    assert (RECORDS.parent / "README.md").read_text() == page()


def test_every_record_is_that_of_its_experiment() -> None:
    records = {path.stem for path in RECORDS.glob("*.json")}
    expected = {stem: one.name for one in experiments() for stem in stems_of(one)}
    assert records and records <= set(expected)
    for stem in records:
        record = record_of(stem)
        assert record is not None and record.experiment == expected[stem]
        assert record.config["smoke"] is False and not any(run.errors for run in record.runs)
