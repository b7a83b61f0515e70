"""The page of the lab says what its records say."""

from __future__ import annotations

from sluiceway.lab.experiments.registry import NAMES, experiment_of
from support.lab_page import RECORDS, page, record_of


def test_page_is_up_to_date() -> None:
    """`python tests/support/lab_page.py > docs/lab/README.md` renews it."""
    assert (RECORDS.parent / "README.md").read_text() == page()


def test_every_record_is_that_of_its_experiment() -> None:
    """Of a real run: what a smoke run finds is no result."""
    names = {path.stem for path in RECORDS.glob("*.json")}
    assert names and names <= set(NAMES)
    for name in names:
        record = record_of(experiment_of(name))
        assert record is not None and record.experiment == name
        assert record.config["smoke"] is False and not any(run.errors for run in record.runs)
