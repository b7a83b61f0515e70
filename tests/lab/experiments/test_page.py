"""The page of the lab says what its records say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluiceway.lab.experiments.experiment import LabRecord
from sluiceway.lab.experiments.registry import NAMES, experiments
from support.mirror import ROOT

LAB = ROOT / "docs" / "lab"
WORDS = {True: "stood", False: "fell", None: "open"}


@pytest.mark.parametrize("path", sorted((LAB / "records").glob("*.json")), ids=lambda path: path.stem)
def test_every_verdict_of_a_record_is_on_the_page(path: Path) -> None:
    """With its sentence, and by the commit that it was made from; a smoke run is no result."""
    record = msgspec.json.decode(path.read_bytes(), type=LabRecord)
    page = (LAB / "README.md").read_text()
    for verdict in record.verdicts:
        assert f"| {verdict.hypothesis} | {WORDS[verdict.stood]} | {verdict.sentence} |" in page
    assert record.experiment == path.stem and record.experiment in NAMES
    assert f"commit `{(record.git_sha or '')[:9]}`" in page and record.config["smoke"] is False


def test_every_experiment_is_on_the_page() -> None:
    """With its question."""
    page = (LAB / "README.md").read_text()
    assert [one.name for one in experiments() if f"{one.question} |" not in page] == []
