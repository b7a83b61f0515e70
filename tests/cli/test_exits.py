"""Expected errors are one line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sluiceway.cli import exits
from sluiceway.cli.exits import command, flag_of
from sluiceway.errors import ConfigError, ModelConfigError, ModelSourceError, SluicewayError, invalid


def run(fault: BaseException) -> tuple[int, str]:
    app = typer.Typer()

    @app.command()
    @command
    def fail() -> None:
        raise fault

    result = CliRunner().invoke(app)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (
            ConfigError("keep_alive_s", "must be from 1 to 2, not 3"),
            2,
            "error: --keep-alive: must be from 1 to 2, not 3\n",
        ),
        (ModelSourceError("no such model"), 3, "error: no such model\n"),
        (ModelConfigError("config.json: hidden_act", "is wrong"), 3, "error: config.json: hidden_act: is wrong\n"),
        (invalid("too long"), 1, "error: too long\n"),
        (SluicewayError("the engine has stopped"), 1, "error: the engine has stopped\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_expected_error_is_a_line_and_a_code(fault: BaseException, code: int, line: str) -> None:
    """For each kind of error, and for Ctrl-C."""
    assert run(fault) == (code, line)


def test_closed_pipe_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `sluiceway generate | head -1`."""
    forgotten: list[bool] = []
    monkeypatch.setattr(exits, "_discard_stdout", lambda: forgotten.append(True))
    assert run(BrokenPipeError()) == (1, "")
    assert forgotten == [True]


def test_program_is_silent_when_its_pipe_is_closed() -> None:
    """A real process prints neither a traceback nor an error of the last flush."""
    code = (
        "import typer\nfrom sluiceway.cli.exits import command\n"
        "@command\ndef talk() -> None:\n    while True:\n        print('words')\n"
        "app = typer.Typer()\napp.command()(talk)\napp()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_full_disk_is_a_clear_error() -> None:
    """In a real process, whose last flush fails too."""
    code = (
        "import typer\nfrom sluiceway.cli.exits import command\n"
        "@command\ndef talk() -> None:\n    print('words', flush=True)\n"
        "app = typer.Typer()\napp.command()(talk)\napp()"
    )
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_other_error_of_the_system_is_not_hidden() -> None:
    """It may be a bug."""
    app = typer.Typer()

    @app.command()
    @command
    def fail() -> None:
        raise FileNotFoundError("gone")

    assert isinstance(CliRunner().invoke(app).exception, FileNotFoundError)


def test_unexpected_error_is_not_hidden() -> None:
    """Bugs keep their traceback."""
    app = typer.Typer()

    @app.command()
    @command
    def fail() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(app).exception, ZeroDivisionError)


def test_command_keeps_its_name_and_its_help() -> None:
    """The help shows those of the wrapped function."""

    def body() -> None:
        """What it does."""

    wrapped: Callable[[], None] = command(body)
    assert (wrapped.__name__, wrapped.__doc__) == ("body", "What it does.")


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("port", "--port"),
        ("TMPDIR", "TMPDIR"),
        ("max_running", "--max-running"),
        ("drain_timeout_s", "--drain-timeout"),
    ],
)
def test_flag_is_the_fields_name_without_its_unit(field: str, flag: str) -> None:
    """The help of the flag has the unit. The name of a variable is not changed."""
    assert flag_of(field) == flag
