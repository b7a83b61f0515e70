"""The bars of downloads and of loading."""

from __future__ import annotations

import sys

import pytest

from sluiceway.store.progress import DownloadProgress, download_bar, loading_bar


def test_nothing_is_shown_when_nothing_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    """A model on this machine needs no bar."""
    with download_bar():
        pass
    assert capsys.readouterr() == ("", "")


def test_bar_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the name and the bytes. Nothing is written to stdout."""
    with download_bar() as show:
        show(DownloadProgress("tiny", 1_000_000, 2_000_000))
        show(DownloadProgress("tiny", 2_000_000, 2_000_000))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny" in shown.err and "2.0/2.0 MB" in shown.err


def test_loading_shows_nothing_when_stderr_is_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A log must have only its own lines."""
    with loading_bar("tiny") as show:
        assert show is None
    assert capsys.readouterr() == ("", "")


def test_loading_shows_nothing_when_there_is_no_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may have been started with closed streams."""
    monkeypatch.setattr(sys, "stderr", None)
    with loading_bar("tiny") as show:
        assert show is None


def test_loading_is_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name and the bytes of the model."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with loading_bar("tiny") as show:
        assert show is not None
        show(1_000_000, 2_000_000)
        show(2_000_000, 2_000_000)
    shown = capsys.readouterr()
    assert "loading tiny" in shown.err and "2.0/2.0 MB" in shown.err
