"""The printed record of an experiment."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sluiceway_lab.experiments.report import show
from sluiceway_lab.experiments.session import LabSession
from sluiceway_lab.load.record import Record
from sluiceway_lab.session import RunningServer
from support.labs import experiment
from support.target_servers import NOWHERE


@pytest.fixture(scope="module")
def record() -> Record:
    return LabSession(experiment=experiment(), first=RunningServer(target=NOWHERE)).run(lambda line: None)


def test_table_verdicts_and_open_points_are_shown(record: Record) -> None:
    out = io.StringIO()
    show(record, experiment(), Console(file=out, width=100))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "How long is a nap?" and lines[1].split() == ["run", "took", "ms"]
    assert lines[3].split() == ["s,", "twice", "2", "500.0"]
    assert lines[-4:] == [
        "supported it is quick: 0.5 s",
        "refuted   it is free: it costs 1",
        "open      it is: ?",
        "not shown: dreams",
    ]
