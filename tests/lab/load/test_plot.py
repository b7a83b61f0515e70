"""A record as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load.plot import draw, require_plotting
from support.records import record, run


def test_picture_is_drawn(tmp_path: Path) -> None:
    """Of every server that has levels; one that has none leaves no line."""
    made = record(
        *(
            run("ours", "together", level, tokens_per_s=100.0 * level, itl_p50_s=0.01, itl_p99_s=0.02)
            for level in (8, 1)
        ),
        run("theirs", "start", 0, ready_s=1.0),
    )
    draw(made, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_nothing_is_empty(tmp_path: Path) -> None:
    """Not a fault: the record is what counts."""
    draw(record(run("ours", "start", 0, ready_s=1.0)), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize("name", ["none/plot.png", "plot.docx"])
def test_picture_that_cannot_be_written_is_a_sentence(tmp_path: Path, name: str) -> None:
    """A folder that is not there, a format that nobody draws."""
    with pytest.raises(ConfigError, match="^plot: cannot write"):
        draw(record(run("ours", "together", 1, tokens_per_s=1.0)), tmp_path / name)


def test_plotting_is_missed_before_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sentence says what to install."""
    require_plotting()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'sluiceway\[lab\]'"):
        require_plotting()
