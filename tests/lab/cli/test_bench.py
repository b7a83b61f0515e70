"""The command `bench`: its flags, its output, and a quick run on the fake model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway_lab.bench import BenchConfig
from sluiceway_lab.cli.bench import parse_levels
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.processes import family
from sluiceway_lab.load.record import SCHEMA, Record
from sluiceway_lab.session import OwnServer, RunningServer, Session
from support.records import record, run


def bench(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """The sessions that the command would have run."""
    made: list[Session] = []

    def measure(self: Session, say: Any) -> Record:
        made.append(self)
        say("measuring")
        return record(run("ours", "together", 1, tokens_per_s=100.0))

    monkeypatch.setattr(Session, "run", measure)
    return made


@pytest.mark.e2e
def test_quick_run_measures_a_server_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    # Some milliseconds a step, as a model takes: else an answer may be over before anything can happen beside it.
    flags = ["--no-floor", "--levels", "1,4", "--serve-args", "--fake-step 0.003", "--json", str(path)]
    code, out, err = bench("fake", "--quick", *flags)
    assert code == 0, err
    made = msgspec.json.decode(path.read_bytes(), type=Record, strict=True)
    assert made.schema == SCHEMA and made.servers[0].kind == "sluiceway"
    scenarios = ["start", "alone", "together", "together", "together_short", "prefill", "joiner"]
    scenarios += ["close_stream", "close_plain", "memory"]
    assert [one.scenario for one in made.runs] == scenarios
    assert not any(one.errors for one in made.runs)
    four = made.runs[3].figures
    assert made.runs[4].figures["tokens"] == 4 * 4 and "cpu_api_per_request_s" in four
    assert (four["tokens"], four["short_answers"], four["chunks_per_token"]) == (4 * 32, 0.0, 1.0)
    assert four["steps"] >= 32 and four["over_alone"] > 0
    assert four["model_share"] + four["scheduler_share"] + four["delivery_share"] == pytest.approx(1.0, abs=1e-4)
    assert {"cpu_client_s", "cpu_api_s", "cpu_tokenizer_s", "cpu_engine_s", "cpu_supervisor_s"} <= four.keys()
    assert made.runs[-1].figures["pss_bytes"] > 10_000_000
    assert "one after another" in out and "sluiceway, together 4" in err


def test_own_server_is_measured_by_default(sessions: list[Session]) -> None:
    arguments = ["--dtype", "float32", "--threads", "1", "--serve-args", "--max-running '8'", "--no-floor"]
    assert bench("fake", *arguments)[0] == 0
    (made,) = sessions
    assert isinstance(made.first, OwnServer) and made.rival is None and not made.measures_floor
    assert made.first.files.name == "fake"
    assert (made.first.dtype, made.first.threads, made.first.flags) == ("float32", 1, ("--max-running", "8"))
    assert made.config == BenchConfig(seed=made.config.seed)


def test_prompts_are_new_each_time(sessions: list[Session]) -> None:
    bench("fake")
    bench("fake")
    assert sessions[0].config.seed != sessions[1].config.seed


def test_two_servers_that_run_are_measured(sessions: list[Session]) -> None:
    arguments = ["--url", "http://127.0.0.1:1/v1", "--pid", "7", "--vs", "http://127.0.0.1:2", "--vs-pid", "8"]
    assert bench("their-name", *arguments, "--vs-model", "m", "--api-key", "k")[0] == 0
    (made,) = sessions
    assert made.first == RunningServer(target=Target("127.0.0.1", 1, api_key="k"), model="their-name", pid=7)
    assert made.rival == RunningServer(target=Target("127.0.0.1", 2, api_key="k"), model="m", pid=8)
    assert made.measures_floor


def test_weights_of_a_server_that_runs_can_be_named(sessions: list[Session]) -> None:
    bench("--url", "http://127.0.0.1:1", "--weights", "fake", "--dtype", "float32", "--threads", "1")
    (made,) = sessions
    assert isinstance(made.first, RunningServer) and made.first.files is not None
    assert (made.first.files.name, made.first.dtype) == ("fake", "float32")
    assert bench("--url", "http://127.0.0.1:1", "--weights", "nix")[0] == 3


def test_run_with_failed_requests_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = msgspec.structs.replace(run("ours", "together", 1), errors=["busy"])
    monkeypatch.setattr(Session, "run", lambda self, say: record(failed))
    code, out, _ = bench("fake")
    assert code == 1 and "ours, together 1, repeat 0: 1 failed: busy" in out


def test_interrupted_run_is_reported_as_partial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    partial = record(run("ours", "together", 1, tokens_per_s=100.0), is_partial=True)
    monkeypatch.setattr(Session, "run", lambda self, say: partial)
    code, out, _ = bench("fake", "--json", str(tmp_path / "record.json"))
    assert code == 130 and "ours, together 1" in out and "Stopped before its end" in out
    assert json.loads((tmp_path / "record.json").read_bytes())["is_partial"] is True


@pytest.mark.e2e
def test_interruption_ends_the_server_that_was_started(tmp_path: Path) -> None:
    """As with Ctrl-C, the signal reaches every process of the terminal."""
    path = tmp_path / "record.json"
    flags = ["--no-floor", "--scenario", "streams", "--levels", "2", "--repeats", "50", "--json", str(path)]
    command = [sys.executable, "-m", "sluiceway", "bench", "fake", *flags, "--serve-args", "--fake-step 0.005"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    while "together 2, repeat 0" not in (line := process.stderr.readline()):
        assert line, "it has ended"
    started = family(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "sluiceway, together 2" in out and "Stopped before its end" in out
    made = msgspec.json.decode(path.read_bytes(), type=Record)
    assert made.is_partial and [one.scenario for one in made.runs[:2]] == ["alone", "together"]
    assert len(started) > 3 and not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_measure_can_be_cut_to_what_is_of_interest(sessions: list[Session]) -> None:
    arguments = ["--levels", "8,1,8", "--repeats", "2", "--tokens", "16", "--seed", "3"]
    bench("fake", *arguments, "--scenario", "streams", "--scenario", "prefill")
    config = sessions[0].config
    assert (config.levels, config.repeats, config.tokens, config.seed) == ((1, 8), 2, 16, 3)
    assert config.scenarios == ("streams", "prefill")


def test_quick_leaves_what_was_chosen(sessions: list[Session]) -> None:
    bench("fake", "--quick", "--repeats", "2", "--tokens", "48", "--seed", "0")
    assert sessions[0].config == BenchConfig(levels=(1, 8, 32), repeats=2, tokens=48, alone=4)


def test_soak_is_run_when_it_is_named(sessions: list[Session]) -> None:
    bench("fake", "--scenario", "soak", "--requests", "50")
    assert (sessions[0].config.scenarios, sessions[0].config.requests) == (("soak",), 50)


def test_tables_have_standard_output_for_themselves(sessions: list[Session], tmp_path: Path) -> None:
    code, out, err = bench("fake", "--plot", str(tmp_path / "p.png"))
    assert (code, err) == (0, "measuring\n")
    assert "ours, together 1" in out and "{" not in out
    assert (tmp_path / "p.png").exists()


def test_record_has_standard_output_for_itself_when_it_is_asked_for_there(sessions: list[Session]) -> None:
    code, out, err = bench("fake", "--json", "-")
    assert code == 0 and json.loads(out)["schema"] == SCHEMA
    assert "ours, together 1" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--levels", "1,two"], "error: --levels: must be numbers separated by commas, not '1,two'\n"),
        (["--levels", "0"], "error: --levels: must be numbers from 1 to 4096, not (0,)\n"),
        (["--scenario", "naps"], "error: --scenario: must be one of streams, "),
        (["--url", "nowhere"], "error: --url: must look like http://127.0.0.1:8000, not 'nowhere'\n"),
        (["--vs", "nowhere"], "error: --vs: must look like http://127.0.0.1:8000, not 'nowhere'\n"),
        (["--pid", "7"], "error: --pid: has no effect without --url\n"),
        (["--weights", "fake"], "error: --weights: has no effect without --url\n"),
        (["--weights", "fake", "--url", "http://h", "--no-floor"], "error: --weights: has no effect with --no-floor"),
        (["--vs-model", "m"], "error: --vs-model: has no effect without --vs\n"),
        (["--vs-pid", "7"], "error: --vs-pid: has no effect without --vs\n"),
        (["--serve-args", "-x", "--url", "http://h"], "error: --serve-args: has no effect with --url"),
        (["--api-key", "k"], "error: --api-key: has no effect without --url or --vs: "),
        (["--source", "hub", "--url", "http://h"], "error: --source: has no effect with --url: that server is "),
        (["--dtype", "int8", "--url", "http://h"], "error: --dtype: has no effect with --url: that server is "),
        (["--threads", "1", "--url", "http://h", "--no-floor"], "error: --threads: has no effect with --url: "),
        (["--tokens", "9", "--scenario", "memory"], "error: --tokens: has no effect without the scenario streams\n"),
        (["--requests", "9"], "error: --requests: has no effect without --scenario soak\n"),
        (["--scenario", "start", "--url", "http://h"], "error: --scenario: start measures the start of a server"),
        (["--serve-args", "'"], "error: --serve-args: cannot be split: No closing quotation\n"),
    ],
)
def test_wrong_flag_is_refused_before_anything_is_measured(
    sessions: list[Session], arguments: list[str], sentence: str
) -> None:
    code, _, err = bench("fake", *arguments)
    assert code == 2 and err.startswith(sentence)
    assert sessions == []


def test_plot_is_refused_before_the_measurement_when_it_cannot_be_drawn(
    sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = bench("fake", "--plot", "p.png")
    assert code == 2 and err.startswith("error: --plot: needs matplotlib") and sessions == []


def test_server_that_does_not_answer_is_a_sentence() -> None:
    code, _, err = bench("--url", "http://127.0.0.1:1", "--no-floor")
    assert code == 1 and "error: no answer from http://127.0.0.1:1" in err


def test_variable_may_be_idle(sessions: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_DTYPE", "int8")
    assert bench("--url", "http://127.0.0.1:1")[0] == 0


def test_levels_rise_and_are_each_once() -> None:
    assert parse_levels("32, 1,8,1") == (1, 8, 32)
