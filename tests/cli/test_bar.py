"""The bar of a download."""

from __future__ import annotations

import pytest

from sluiceway.cli.bar import download_bar
from sluiceway.store.progress import Progress


def test_nothing_is_shown_when_nothing_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is here is served without a word."""
    with download_bar():
        pass
    assert capsys.readouterr() == ("", "")


def test_bar_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name and its bytes; stdout stays clean for the path."""
    with download_bar() as show:
        show(Progress("tiny", 1_000_000, 2_000_000))
        show(Progress("tiny", 2_000_000, 2_000_000))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny" in shown.err and "2.0/2.0 MB" in shown.err
