"""Reads questions from a terminal. A question is one line, or several lines that are pasted together."""

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
"""The prompt for further lines of a question."""

_PASTE_S = 0.05
"""Input that comes within this time after the end of a line was pasted, not typed."""
_READ_BYTES = 65_536
_CTRL_D = re.compile("[\\0\x04]")
"""Ctrl-D in the input. A terminal in line mode stores it as NUL."""


class TypedQuestions:
    """Reads the terminal at standard input, with line editing and a history where Python has readline.

    Many terminals mark a paste, and readline keeps its lines together. From other terminals, lines come as if typed:
    those that have arrived when the first one has been read belong to the same question. The last line of a paste
    usually has no line end, so it may be edited, and Enter sends the question.
    """

    def __init__(self) -> None:
        self._readline: ModuleType | None = None
        if sys.stdout.isatty():  # `input` uses readline only then
            with contextlib.suppress(ImportError):
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
                self._readline = readline
        self._has_ended = False

    def read(self) -> str:
        """Return the next question. When the person leaves, end the line of the prompt and raise `EOFError`."""
        try:
            if self._has_ended:
                raise EOFError
            lines = [self._line(PROMPT)]
            while pasted := self._waiting():
                *whole, begun = pasted.split("\n")
                if self._readline is not None:  # else the terminal has shown them itself
                    _write("".join(f"{MORE}{line}\n" for line in whole))
                lines += whole
                if begun:
                    lines.append(self._line(MORE, begun))
        except EOFError:
            _write("\n")
            raise
        return "\n".join(lines)

    def _line(self, prompt: str, begun: str = "") -> str:
        """Read one more line. `begun` is the part of it that was typed before."""
        if self._readline is None:
            if not begun:
                _write(prompt)  # `input` writes it to standard output, which may be a file
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
        """Return the input that has already arrived at the terminal."""
        read = b""
        with _raw_mode(sys.stdin.fileno()) as descriptor:
            while select.select([descriptor], [], [], _PASTE_S)[0]:
                chunk = os.read(descriptor, _READ_BYTES)
                read += chunk
                if not chunk:  # the terminal was closed
                    self._has_ended = True
                    break
        # readline turns off the translation of line ends, so a paste may have line ends of either kind.
        text, *end = _CTRL_D.split(read.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"), 1)
        self._has_ended = self._has_ended or bool(end)
        return text


@contextlib.contextmanager
def _raw_mode(descriptor: int) -> Iterator[int]:
    """Make the terminal pass on input immediately, without showing it."""
    before = termios.tcgetattr(descriptor)
    raw = termios.tcgetattr(descriptor)
    raw[3] &= ~(termios.ECHO | termios.ICANON)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, raw)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
