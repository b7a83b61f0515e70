"""Smoke runs of all experiments on the fake model. They show that experiments work, not what they find."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.registry import NAMES, experiment_of, experiments
from sluiceway_lab.experiments.report import show
from sluiceway_lab.experiments.session import LabSession
from sluiceway_lab.load.plot import draw
from sluiceway_lab.load.record import Record
from sluiceway_lab.session import OwnServer
from support.system import needs_nginx

FAKE = OwnServer(files=ModelFiles(kind=ModelKind.FAKE, path="", name="fake"), flags=("--fake-step", "0.002"))


_OF_ANSWERS_THAT_PART = {"first_divergence_tokens", "divergence_lead"}
"""Smoke runs of all experiments on the fake model. They show that experiments work, not what they find."""


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_nginx) if name == "keep-alive" else name for name in NAMES]
)
def test_experiment_runs_to_its_verdicts_in_a_smoke_run(name: str, tmp_path: Path) -> None:
    """No request fails, every drawn column has a figure, and no hypothesis falls that can be judged."""
    experiment = experiment_of(name)
    record = LabSession(experiment=experiment, first=FAKE, is_smoke=True).run(lambda line: None)
    assert [run.errors for run in record.runs if run.errors] == []
    assert record.verdicts and all(verdict.sentence for verdict in record.verdicts)
    assert [verdict for verdict in record.verdicts if verdict.stood is False] == []
    seen = {name for run in record.runs for name in run.figures}
    assert {column.figure for column in experiment.columns} <= seen | _OF_ANSWERS_THAT_PART
    assert set(experiment.drawn) <= seen
    assert set(experiment.drawn) <= {column.figure for column in experiment.columns}
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record
    out = io.StringIO()
    show(record, experiment, Console(file=out, width=200))
    assert record.question in out.getvalue()
    draw(record, experiment.drawn_columns, tmp_path / "plot.png", over_streams=experiment.is_drawn_over_streams)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_experiments_go_by_their_names() -> None:
    assert [one.name for one in experiments()] == list(NAMES)


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match="must be one of overlap.* not 'nothing'"):
        experiment_of("nothing")
