"""The command `lab`: its flags, its output, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.config import ModelKind
from sluiceway_lab.experiments import registry
from sluiceway_lab.experiments.registry import NAMES
from sluiceway_lab.experiments.session import LabSession
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.record import Record, Verdict
from sluiceway_lab.session import OwnServer, RunningServer
from support.labs import experiment


def lab(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["lab", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[LabSession]:
    """The sessions that the command would have run. Every name is that of an experiment without work."""
    made: list[LabSession] = []
    run = LabSession.run

    def noted(self: LabSession, say: Any) -> Record:
        made.append(self)
        return run(self, say)

    monkeypatch.setattr(LabSession, "run", noted)
    monkeypatch.setattr(registry, "experiment_of", lambda name: experiment(name=name))
    return made


def test_refuted_hypothesis_is_a_result(sessions: list[LabSession], tmp_path: Path) -> None:
    json_file, plot = tmp_path / "a.json", tmp_path / "a.png"
    code, out, err = lab("naps", "--smoke", "--seed", "3", "--json", str(json_file), "--plot", str(plot))
    assert code == 0 and "refuted   it is free: it costs 1" in out and err == "s, twice 2, repeat 0\n"
    (made,) = sessions
    assert isinstance(made.first, OwnServer) and made.first.files.kind is ModelKind.FAKE
    assert (made.is_smoke, made.seed, made.first.flags) == (True, 3, ("--fake-step", "0.002"))
    assert json.loads(json_file.read_bytes())["verdicts"][1]["stood"] is False
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_model_is_served_without_the_flags_of_a_smoke_run(sessions: list[LabSession]) -> None:
    assert lab("naps", "fake")[0] == 0
    (made,) = sessions
    assert isinstance(made.first, OwnServer) and (made.first.files.name, made.first.flags) == ("fake", ())


def test_server_that_runs_already_is_taken(sessions: list[LabSession]) -> None:
    assert lab("naps", "m", "--url", "http://127.0.0.1:1/v1", "--api-key", "k")[0] == 0
    assert sessions[0].first == RunningServer(target=Target("127.0.0.1", 1, api_key="k"), model="m")


def test_experiments_are_listed() -> None:
    code, out, _ = lab("--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: NAME: name an experiment; --list shows them\n"),
        (["nothing"], "error: NAME: must be one of overlap, "),
        (["overlap", "--url", "nowhere"], "error: --url: must look like http://127.0.0.1:8000, not 'nowhere'\n"),
        (["overlap", "--api-key", "k"], "error: --api-key: has no effect without --url"),
    ],
)
def test_wrong_flag_is_refused_before_anything_is_started(arguments: list[str], sentence: str) -> None:
    code, _, err = lab(*arguments)
    assert code == 2 and err.startswith(sentence)


def test_request_that_fails_is_exit_code_1(sessions: list[LabSession], monkeypatch: pytest.MonkeyPatch) -> None:

    async def broken(lab: Any) -> list[Verdict]:
        lab.note("s", "a", {"took_s": 1.0}, streams=1, errors=["it broke"])
        return [Verdict("it holds", True, "so far")]

    monkeypatch.setattr(registry, "experiment_of", lambda name: experiment(run=broken))
    code, out, _ = lab("naps", "--smoke")
    assert code == 1 and "supported it holds: so far" in out
