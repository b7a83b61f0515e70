"""The command `check`: its flags, its output, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway_lab.check.question import Finding
from sluiceway_lab.check.session import QUESTIONS, TOTAL_S, CheckSession
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.record import Grade, Record
from support.check_records import check_record

GOOD = Finding(Grade.PASS, "all well", {})
URL = "http://127.0.0.1:1"


def check(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["check", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[CheckSession]:
    """The sessions that the command would have run. The server passes the first question and fails all others."""
    made: list[CheckSession] = []

    def ask(self: CheckSession, say: Any) -> Record:
        made.append(self)
        say("asking")
        findings = [GOOD] + [Finding(Grade.FAIL, "broke", {})] * (len(self.questions) - 1)
        return check_record(list(zip(self.questions, findings, strict=True)))

    monkeypatch.setattr(CheckSession, "run", ask)
    return made


def test_everything_is_asked_by_default(sessions: list[CheckSession]) -> None:
    code, out, err = check(URL)
    (made,) = sessions
    assert (code, err) == (1, "asking\n") and "1 pass, 16 fail" in out
    assert made.target == Target("127.0.0.1", 1) and made.questions == list(QUESTIONS)
    assert (made.model, made.pid, made.drain_pid, made.config.timeout_s) == (None, None, None, 120.0)
    assert made.total_s == TOTAL_S


def test_flags_reach_the_session(sessions: list[CheckSession], tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    flags = ["--model", "m", "--api-key", "k", "--pid", "7", "--drain-pid", "8", "--timeout", "9", "--total", "99"]
    code, out, _ = check(URL + "/v1", "--only", "fin", *flags, "--json", str(path))
    (made,) = sessions
    assert code == 0 and "all well" in out
    assert made.target == Target("127.0.0.1", 1, api_key="k") and [one.name for one in made.questions] == ["fin"]
    assert (made.model, made.pid, made.drain_pid, made.config.timeout_s, made.total_s) == ("m", 7, 8, 9.0, 99.0)
    assert msgspec.json.decode(path.read_bytes(), type=Record).findings[0].question == "fin"
    assert json.loads(path.read_bytes())["schema"] == "sluiceway.lab/2"


def test_record_may_have_standard_output_for_itself(sessions: list[CheckSession]) -> None:
    code, out, err = check(URL, "--only", "fin", "--json", "-")
    assert code == 0 and json.loads(out)["findings"][0]["verdict"] == "pass" and "1 pass" in err


def test_questions_are_listed(sessions: list[CheckSession]) -> None:
    code, out, _ = check("--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [one.name for one in QUESTIONS]
    assert check("--list", "--only", "rst")[1].count("\n") == 1
    assert sessions == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: URL: name a server, like http://127.0.0.1:8000\n"),
        (["nowhere"], "error: URL: must look like http://127.0.0.1:8000, not 'nowhere'\n"),
        ([URL, "--only", "naps"], "error: --only: must be one of bad-requests, "),
        ([URL, "--timeout", "nan"], "Usage: "),
    ],
)
def test_wrong_flag_is_refused_before_anything_is_asked(
    sessions: list[CheckSession], arguments: list[str], sentence: str
) -> None:
    code, _, err = check(*arguments)
    assert code == 2 and err.startswith(sentence)
    assert sessions == []


def test_unreachable_server_is_a_clear_error() -> None:
    code, _, err = check(URL)
    assert code == 1 and f"error: no answer from {URL}" in err
