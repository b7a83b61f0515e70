"""Plots of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load.plot import draw
from sluiceway_lab.load.tables import PLOTTED, Column
from support.records import record, run

TOOK = (Column("took_s", "took ms", 1e3),)


def test_plot_is_drawn(tmp_path: Path) -> None:
    made = record(
        *(
            run("ours", "together", level, tokens_per_s=100.0 * level, itl_p50_s=0.01, itl_p99_s=0.02)
            for level in (8, 1)
        ),
        run("theirs", "start", 0, ready_s=1.0),
    )
    draw(made, PLOTTED, tmp_path / "plot.png", over_streams=True)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_figures_is_empty(tmp_path: Path) -> None:
    draw(record(run("ours", "start", 0, ready_s=1.0)), PLOTTED, tmp_path / "plot.png", over_streams=True)
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize("name", ["none/plot.png", "plot.docx"])
def test_plot_that_cannot_be_written_is_a_configuration_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="^plot: cannot write"):
        draw(record(run("ours", "together", 1, tokens_per_s=1.0)), PLOTTED, tmp_path / name, over_streams=True)


def test_every_row_is_a_bar(tmp_path: Path) -> None:
    draw(record(run("s", "twice", 2, took_s=0.5)), TOOK, tmp_path / "a.svg", over_streams=False)
    assert "<!-- s, twice 2 -->" in (tmp_path / "a.svg").read_text()


def test_every_scenario_with_several_numbers_of_streams_is_a_line(tmp_path: Path) -> None:
    runs = [run("s", "fast", n, took_s=n / 10) for n in (4, 1)] + [run("s", "once", 2, took_s=1.0)]
    draw(record(*runs), TOOK, tmp_path / "a.svg", over_streams=True)
    picture = (tmp_path / "a.svg").read_text()
    assert "<!-- fast -->" in picture and "<!-- once -->" not in picture
