"""A record of an experiment as a person sees it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.report import draw, show
from sluiceway_lab.experiments.session import LabSession
from sluiceway_lab.load.record import Record, summarize
from sluiceway_lab.session import RunningServer
from support.labs import experiment
from support.records import run
from support.target_servers import NOWHERE


@pytest.fixture(scope="module")
def record() -> Record:
    return LabSession(experiment=experiment(), first=RunningServer(target=NOWHERE)).run(lambda line: None)


def test_table_verdicts_and_gaps_are_shown(record: Record) -> None:
    """What a server said is no markup; columns without a figure are left out."""
    out = io.StringIO()
    show(record, experiment(), Console(file=out, width=100))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "How long is a nap?" and lines[1].split() == ["run", "took", "ms"]
    assert lines[3].split() == ["s,", "twice", "2", "500.0"]
    assert lines[-4:] == [
        "stood it is quick: 0.5 s",
        "fell  it is free: it costs 1",
        "open  it is: ?",
        "not shown: dreams",
    ]


def test_picture_is_drawn(record: Record, tmp_path: Path) -> None:
    """In the format of the name."""
    draw(record, experiment(), tmp_path / "a.svg")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_picture_may_have_a_line_for_each_scenario(record: Record, tmp_path: Path) -> None:
    """Over the numbers of streams; what was done with one number only is no line."""
    runs = [run("s", "fast", n, took_s=n / 10) for n in (4, 1)] + [run("s", "once", 2, took_s=1.0)]
    drawn = experiment(is_drawn_over_streams=True)
    draw(msgspec.structs.replace(record, summary=summarize(runs)), drawn, tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    assert "<!-- fast -->" in picture and "<!-- once -->" not in picture


def test_picture_that_cannot_be_written_is_a_wrong_flag(record: Record, tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(ConfigError, match="^plot: cannot write"):
        draw(record, experiment(), tmp_path / "none" / "a.png")
