"""`sluiceway generate` prints the text on stdout, and nothing else."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.cli.generate import print_stream, read_prompt
from sluiceway.errors import invalid
from support.offline_llm import Script, script_llm


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return script_llm(monkeypatch)


def test_text_goes_to_stdout_as_it_is(script: Script) -> None:
    """No line end is added in a pipe."""
    result = CliRunner().invoke(app, ["generate", "fake", "--prompt", "zero "])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two", "")
    assert script.closed == 1


def test_prompt_is_read_from_standard_input(script: Script) -> None:
    """All of it, with line ends."""
    CliRunner().invoke(app, ["generate", "fake"], input="two\nlines\n")
    assert script.asked[0][0] == "two\nlines\n"


def test_flags_reach_the_model(script: Script) -> None:
    """Those of sampling, the stop strings, and those of the engine."""
    flags = "--temperature 0 --top-p 0.5 --seed 7 --max-tokens 3 --stop a --stop b --dtype float32 --threads 2"
    CliRunner().invoke(app, ["generate", "fake", "--prompt", "", *flags.split(), "--kv-cache-tokens", "64"])
    (prompt, sampling, stop), (files, settings) = script.asked[0], script.opened[0]
    assert (prompt, stop, files.name) == ("", ("a", "b"), "fake")
    assert sampling is not None
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.0, 0.5, 7, 3)
    assert settings == {"dtype": "float32", "threads": 2, "kv_cache_tokens": 64, "on_load": None}


def test_variables_reach_the_model(script: Script) -> None:
    CliRunner().invoke(app, ["generate", "fake"], env={"SLUICEWAY_PROMPT": "x", "SLUICEWAY_SEED": "9"})
    prompt, sampling, _ = script.asked[0]
    assert prompt == "x" and sampling is not None and sampling.seed == 9


def test_json_is_one_object(script: Script) -> None:
    """It has the text, the ids, the finish reason, and the length of the prompt."""
    result = CliRunner().invoke(app, ["generate", "fake", "--prompt", "x", "--json"])
    assert json.loads(result.stdout) == {
        "text": "one two",
        "token_ids": [1, 2],
        "finish_reason": "length",
        "prompt_tokens": 7,
    }


def test_refused_prompt_is_a_clear_error(script: Script) -> None:
    """The exit code is 1. Text that was written before stays."""
    script.fault = invalid("the prompt is too long")
    result = CliRunner().invoke(app, ["generate", "fake", "--prompt", "x"])
    assert (result.exit_code, result.stderr) == (1, "error: the prompt is too long\n")


def test_line_is_ended_on_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt of the shell must begin on a new line."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_stream(script.stream())
    assert capsys.readouterr().out == "one two\n"


def test_prompt_is_required_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for input."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with pytest.raises(typer.BadParameter, match="give a text, or pipe one in"):
        read_prompt(None)


WRONG_FLAGS = [
    ("--stop", ""),
    ("--temperature", "nan"),
    ("--temperature", "-1"),
    ("--top-p", "0"),
    ("--top-k", "-2"),
    ("--top-k", "some"),
    ("--min-p", "2"),
    ("--presence-penalty", "3"),
    ("--frequency-penalty", "-3"),
    ("--repetition-penalty", "0"),
    ("--seed", str(2**70)),
    ("--max-tokens", "0"),
]


@pytest.mark.parametrize(("flag", "value"), WRONG_FLAGS)
@pytest.mark.parametrize("command", [["generate", "fake", "--prompt", "x"], ["chat", "fake"]])
def test_flag_outside_its_range_is_named(script: Script, command: list[str], flag: str, value: str) -> None:
    """The exit code is 2, before a model is loaded."""
    result = CliRunner().invoke(app, [*command, flag, value])
    assert result.exit_code == 2 and flag in result.stderr
    assert not script.opened


@pytest.mark.parametrize("command", [["generate", "fake", "--prompt", "x"], ["chat", "fake"]])
def test_stop_texts_that_the_server_would_refuse_are_refused(script: Script, command: list[str]) -> None:
    """The exit code is 2, before a model is loaded."""
    result = CliRunner().invoke(app, [*command, *["--stop", "x"] * 17])
    assert (result.exit_code, result.stderr) == (2, "error: --stop: `stop` may have at most 16 entries, not 17.\n")
    assert not script.opened


FLAGS = "--top-k 5 --min-p 0.1 --presence-penalty 1 --frequency-penalty -1 --repetition-penalty 1.5"


@pytest.mark.parametrize("command", [["generate", "fake", "--prompt", "x"], ["chat", "fake"]])
def test_filters_and_penalties_reach_the_model(script: Script, command: list[str]) -> None:
    CliRunner().invoke(app, [*command, *FLAGS.split()], input="x\n")
    sampling = script.asked[0][1]
    assert sampling is not None
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)


@pytest.mark.parametrize(("flags", "piped"), [(["--prompt", "ab\udcff"], ""), ([], b"ab\xff")])
def test_text_that_is_no_utf_8_is_refused(script: Script, flags: list[str], piped: str | bytes) -> None:
    """The exit code is 2, before a model is loaded."""
    result = CliRunner().invoke(app, ["generate", "fake", *flags], input=piped)
    assert result.exit_code == 2 and "is not UTF-8 at character 2" in result.stderr
    assert not script.opened
