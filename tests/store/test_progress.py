"""The bars of a download and of a load."""

from __future__ import annotations

import sys

import pytest

from sluiceway.store.progress import DownloadProgress, download_bar, loading_bar


def test_nothing_is_shown_when_nothing_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is here is served without a word."""
    with download_bar():
        pass
    assert capsys.readouterr() == ("", "")


def test_bar_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name and its bytes; stdout stays clean for the path."""
    with download_bar() as show:
        show(DownloadProgress("tiny", 1_000_000, 2_000_000))
        show(DownloadProgress("tiny", 2_000_000, 2_000_000))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny" in shown.err and "2.0/2.0 MB" in shown.err


def test_loading_shows_nothing_when_stderr_is_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of JSON must stay lines of JSON."""
    with loading_bar("tiny") as show:
        assert show is None
    assert capsys.readouterr() == ("", "")


def test_loading_shows_nothing_when_there_is_no_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started with all its streams closed."""
    monkeypatch.setattr(sys, "stderr", None)
    with loading_bar("tiny") as show:
        assert show is None


def test_loading_is_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model's name and its bytes."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with loading_bar("tiny") as show:
        assert show is not None
        show(1_000_000, 2_000_000)
        show(2_000_000, 2_000_000)
    shown = capsys.readouterr()
    assert "loading tiny" in shown.err and "2.0/2.0 MB" in shown.err
