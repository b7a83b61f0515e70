"""The model of a command that needs no server."""

from __future__ import annotations

import sys

import pytest
import structlog

from sluiceway.cli.offline import load
from sluiceway.config import ModelFiles, ModelKind
from support.offline_llm import script_llm

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_loading_is_drawn_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """The settings are passed on in either case."""
    script = script_llm(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with load(FAKE, threads=3):
        pass
    ((files, settings),) = script.opened
    assert (files, settings["threads"]) == (FAKE, 3)
    assert (settings["on_load"] is not None) == is_terminal
    assert script.closed == 1


def test_the_log_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the answer's alone."""
    script_llm(monkeypatch)
    with load(FAKE):
        structlog.get_logger("model").warning("something odd")
    captured = capsys.readouterr()
    assert captured.out == "" and "warning something odd" in captured.err
