"""Signals before a server serves: it exits in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])

TELL = "print('up', flush=True)"
BEGIN = f"from sluiceway.cli.main import exit_in_order_on_signals as begin; begin(); {TELL}; "


def code_after(program: str, *numbers: int) -> int:
    """Run a Python program, send it signals when it has printed something, and return its exit code."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        for number in numbers:
            os.kill(process.pid, number)
        return process.wait(60)


@signals
def test_a_signal_before_the_server_serves_exits_in_order(number: int) -> None:
    """While it imports, fetches, or waits."""
    assert code_after(BEGIN + "import signal; signal.pause()", number) == 0


@signals
def test_a_second_signal_ends_the_cleanup(number: int) -> None:
    """The exit code is the same."""
    program = BEGIN + f"import signal\ntry:\n    {TELL}\n    signal.pause()\nfinally:\n    {TELL}\n    signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        for _ in range(2):
            assert process.stdout.readline() == b"up\n"
            os.kill(process.pid, number)
        assert process.wait(60) == 0


@signals
def test_a_signal_while_the_interpreter_ends_does_not_change_the_code(number: int) -> None:
    """The interpreter resets handlers when it ends."""
    late = f"import atexit, os; atexit.register(lambda: os.kill(os.getpid(), {number})); "
    program = late + BEGIN + "raise SystemExit(3)"
    assert code_after(program) == 3


def test_other_commands_are_interrupted_as_usual() -> None:
    """Only `serve` has these handlers."""
    program = (
        "import signal, sys; sys.argv = ['sluiceway', '--version']\n"
        "from sluiceway.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_closed_stream_is_no_traceback(closed: str) -> None:
    """In a real process. Closed streams are replaced by /dev/null."""
    command = (
        f'exec "$0" -m sluiceway generate fake --max-tokens 2 {"--prompt x" if "<" not in closed else ""} {closed}'
    )
    run = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, timeout=300)
    said = 'error: `prompt` must be a string that is not empty, not "".\n' if "<" in closed else ""
    assert (run.returncode, run.stderr) == (1 if said else 0, said)
