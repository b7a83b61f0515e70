"""Records, tables and plots do not disturb each other's output."""

from __future__ import annotations

import importlib
import io
import json
import sys
from pathlib import Path

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.cli import records
from sluiceway_lab.cli.records import console_beside, require_place, write_record


class Screen(io.StringIO):
    """Claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_tables_leave_standard_output_to_a_record_that_wants_it(capsys: pytest.CaptureFixture[str]) -> None:
    console_beside(Path("-"), 80).print("table")
    write_record({"a": 1}, Path("-"))
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"a": 1}, "table\n")


def test_a_record_goes_into_its_file_when_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    console_beside(path, 80).print("table")
    write_record({"a": 1}, path)
    assert path.read_bytes() == b'{"a":1}\n'
    assert capsys.readouterr() == ("table\n", "")


def test_nothing_is_written_when_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write_record({"a": 1}, None)
    assert capsys.readouterr() == ("", "")


def test_tables_are_as_wide_as_said_when_no_screen_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console_beside(None, 123).width == 123
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys, "stdout", Screen())
    assert console_beside(None, 123).width == 77


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write .*x.json") as caught:
        write_record({}, tmp_path / "none" / "x.json")
    assert caught.value.field == "json"


@pytest.mark.parametrize("name", ["none/x.json", ""])
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_measured(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot write") as caught:
        require_place(tmp_path / name, "plot")
    assert caught.value.field == "plot"


@pytest.mark.parametrize("name", [None, "-", "new.json", "old.json"])
def test_a_place_where_a_file_can_be_is_left_as_it_is(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "old.json").write_text("old")
    require_place(None if name is None else Path(name) if name == "-" else tmp_path / name, "json")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_commands_cannot_be_loaded_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ImportError, match=r"needs psutil: pip install 'sluiceway\[lab\]'"):
        importlib.reload(records)
