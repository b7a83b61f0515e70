"""Questions typed and pasted at a real pseudo-terminal, with and without readline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from support.terminal import CTRL_C, CTRL_D, Terminal, terminal

PROGRAM = """
import sys
if {without_readline}:
    sys.modules["readline"] = None
from sluiceway.cli.typed import TypedQuestions
questions = TypedQuestions()
try:
    while True:
        print("asked", ascii(questions.read()), flush=True)
except EOFError:
    print("left", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture(params=[False, True], ids=["readline", "plain"])
def screen(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    command = [sys.executable, "-c", PROGRAM.format(without_readline=request.param)]
    with terminal(command, {**os.environ, "TERM": "xterm"}) as screen:
        screen.wait_for("> ")
        yield screen


def test_line_is_a_question(screen: Terminal) -> None:
    screen.press("first\r")
    screen.wait_for("asked 'first'")
    screen.wait_for("> ")
    screen.press("\r")
    screen.wait_for("asked ''")


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_lines_that_come_together_are_one_question(screen: Terminal, end: str) -> None:
    """The terminal does not mark pastes, and the paste ends with a line end."""
    screen.press(f"first{end}{end}third{end}")
    screen.wait_for(r"asked 'first\n\nthird'")


def test_last_line_waits_for_enter_when_a_paste_ends_within_it(screen: Terminal) -> None:
    """It may be continued."""
    screen.press("first\rsecond\rthi")
    screen.wait_for("second\r\n")
    screen.wait_for("thi")
    screen.press("rd\r")
    screen.wait_for(r"asked 'first\nsecond\nthird'")


def test_control_d_leaves_the_line_of_the_prompt(screen: Terminal) -> None:
    """The prompt of the shell must begin on a new line."""
    screen.press(CTRL_D)
    screen.wait_for("\nleft")
    assert screen.wait_for_end() == 0


def test_control_d_after_a_paste_leaves_with_the_question_asked(screen: Terminal) -> None:
    screen.press(f"first\rsecond\r{CTRL_D}")
    screen.wait_for(r"asked 'first\nsecond'")
    screen.wait_for("\nleft")


def test_control_c_is_an_interrupt(screen: Terminal) -> None:
    screen.press(CTRL_C)
    screen.wait_for("interrupted")


def test_marked_paste_is_one_question() -> None:
    """Readline asks the terminal to mark it, and keeps its lines together until Enter."""
    command = [sys.executable, "-c", PROGRAM.format(without_readline=False)]
    with terminal(command, {**os.environ, "TERM": "xterm"}) as screen:
        screen.wait_for("> ")
        if "\x1b[?2004h" not in screen.screen:
            pytest.skip("an old readline, or libedit, knows no marks")
        screen.press("\x1b[200~first\rsecond\x1b[201~")
        screen.press("\r")
        screen.wait_for(r"asked 'first\nsecond'")


def test_prompt_is_not_written_to_a_file() -> None:
    command = ["sh", "-c", '"$0" -c "$1" | sed s/^/out:/', sys.executable, PROGRAM.format(without_readline=False)]
    with terminal(command, {**os.environ, "TERM": "xterm"}) as screen:
        screen.wait_for("> ")
        screen.press("first\r")
        screen.wait_for("out:asked 'first'")
        screen.press(CTRL_D)
        screen.wait_for("out:left")
        screen.wait_for_end()
    assert "out:>" not in screen.screen
