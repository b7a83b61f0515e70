"""Questions that a person types at a terminal: a line each, or several lines that are pasted together."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
from collections.abc import Iterator
from types import ModuleType

PROMPT = "> "
MORE = ". "
"""Before a line that goes on with the question."""

_TOGETHER_S = 0.05
"""What comes within this time after the end of a line was not typed by hand."""
_READ_BYTES = 65_536
_CTRL_D = re.compile("[\\0\x04]")
"""A terminal has it as NUL when it came while lines were held back."""


class TypedQuestions:
    """Reads the terminal at standard input, with line editing and a history where Python has readline.

    A terminal that marks a paste gives it to readline, which keeps its lines together. Another one gives the lines as
    if they were typed: those that are there already when the first one has been read belong to it. The last line of a
    paste mostly has no end, so it may be edited, and Enter sends the question.
    """

    def __init__(self) -> None:
        self._readline: ModuleType | None = None
        if sys.stdout.isatty():  # else `input` does without it
            with contextlib.suppress(ImportError):
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
                self._readline = readline
        self._has_ended = False

    def read(self) -> str:
        """The next question. Raises `EOFError` where the person leaves, and ends the line of the prompt."""
        try:
            if self._has_ended:
                raise EOFError
            lines = [self._line(PROMPT)]
            while pasted := self._waiting():
                *whole, begun = pasted.split("\n")
                if self._readline is not None:  # else the terminal has shown them
                    _tell("".join(f"{MORE}{line}\n" for line in whole))
                lines += whole
                if begun:
                    lines.append(self._line(MORE, begun))
        except EOFError:
            _tell("\n")
            raise
        return "\n".join(lines)

    def _line(self, prompt: str, begun: str = "") -> str:
        """Reads one more line; the part that was typed before is already shown."""
        if self._readline is None:
            if not begun:
                _tell(prompt)  # `input` writes it to standard output, which may be a file
            return begun + input()
        if not begun:
            return input(prompt)
        editor = self._readline
        editor.set_startup_hook(lambda: editor.insert_text(begun))
        try:
            return input(prompt)
        finally:
            editor.set_startup_hook(None)

    def _waiting(self) -> str:
        """What the terminal holds beyond the lines that were read."""
        read = b""
        with _unseen(sys.stdin.fileno()) as descriptor:
            while select.select([descriptor], [], [], _TOGETHER_S)[0]:
                chunk = os.read(descriptor, _READ_BYTES)
                read += chunk
                if not chunk:  # the terminal has gone
                    self._has_ended = True
                    break
        # The line editor turns off the translation of line ends, so those of a paste may be of either kind.
        text, *end = _CTRL_D.split(read.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"), 1)
        self._has_ended = self._has_ended or bool(end)
        return text


@contextlib.contextmanager
def _unseen(descriptor: int) -> Iterator[int]:
    """Input is neither shown nor held back until the end of its line."""
    before = termios.tcgetattr(descriptor)
    raw = termios.tcgetattr(descriptor)
    raw[3] &= ~(termios.ECHO | termios.ICANON)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, raw)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
