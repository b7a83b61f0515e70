"""Records, tables and plots do not disturb each other's output."""

from __future__ import annotations

import importlib
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sluiceway.errors import ConfigError
from sluiceway_lab.cli import records
from sluiceway_lab.cli.records import report, require_places


class Screen(io.StringIO):
    """Claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def table(console: Console) -> None:
    console.print("table")


def test_tables_leave_standard_output_to_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    report({"a": 1}, table, Path("-"))
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"a": 1}, "table\n")


def test_record_is_written_to_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    report({"a": 1}, table, path)
    assert path.read_bytes() == b'{"a":1}\n'
    assert capsys.readouterr() == ("table\n", "")


def test_tables_are_all_that_is_printed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    report({"a": 1}, table, None)
    assert capsys.readouterr() == ("table\n", "")


def test_tables_are_wide_unless_a_screen_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    report({}, lambda console: widths.append(console.width), None)
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys, "stdout", Screen())
    report({}, lambda console: widths.append(console.width), None)
    assert widths == [200, 77]


def test_tables_are_printed_when_the_file_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write .*x.json") as caught:
        report({}, table, tmp_path / "none" / "x.json")
    assert caught.value.field == "json"
    assert capsys.readouterr().out == "table\n"


@pytest.mark.parametrize("name", ["none/x.json", ""])
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_measured(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot write") as caught:
        require_places(None, tmp_path / name)
    assert caught.value.field == "plot"


@pytest.mark.parametrize("name", [None, "-", "new.json", "old.json"])
def test_a_place_where_a_file_can_be_is_left_as_it_is(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "old.json").write_text("old")
    require_places(None if name is None else Path(name) if name == "-" else tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_missing_matplotlib_is_noticed_before_the_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_places(None, tmp_path / "p.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'sluiceway\[lab\]'"):
        require_places(None, tmp_path / "p.png")


def test_commands_cannot_be_loaded_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ImportError, match=r"needs psutil: pip install 'sluiceway\[lab\]'"):
        importlib.reload(records)
