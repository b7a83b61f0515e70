"""Runs a program on a pseudo-terminal: types, presses keys, and waits for output."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CTRL_C = "\x03"
CTRL_D = "\x04"
PATIENCE_S = 120.0
_LOST_S = 10.0
"""A Ctrl-C that has no effect in this time was lost."""


class Terminal:
    """Controls a program. `screen` is everything that it has shown, on stdout and stderr."""

    def __init__(self, program: subprocess.Popen[bytes], master: int) -> None:
        self._program = program
        self._master = master
        self._seen = 0
        self.screen = ""

    def press(self, keys: str) -> None:
        """Press the keys once the program waits, as a person does.

        A Ctrl-C between the prompt and the wait is lost in Python's readline: it looks for signals only when they end
        its wait.
        """
        status = Path(f"/proc/{self._program.pid}/stat")
        until_s = time.monotonic() + PATIENCE_S
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] == "R":
            assert time.monotonic() < until_s, "the program does not wait for anything"
            os.sched_yield()
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait for `text` after the text of the last wait. Fails if the program ends or is silent."""
        while (found := self.screen.find(text, self._seen)) < 0:
            assert self._read(), f"{text!r} was not shown, but {self.screen[self._seen :]!r}"
        self._seen = found + len(text)

    def interrupt(self, text: str | None = None) -> None:
        """Press Ctrl-C until `text` is shown, or, if it is None, until the program ends."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            self.press(CTRL_C)
            while self._read(_LOST_S):
                if text is not None and (found := self.screen.find(text, self._seen)) >= 0:
                    self._seen = found + len(text)
                    return
            if self._program.poll() is not None:
                assert text is None, f"the program ended before it showed {text!r}"
                return
        raise AssertionError("Ctrl-C had no effect")

    def wait_for_end(self) -> int:
        """Wait for the end of the program, and return its exit status."""
        while self._read():
            pass
        return self._program.wait(PATIENCE_S)

    def _read(self, patience_s: float = PATIENCE_S) -> bool:
        ready, _, _ = select.select([self._master], [], [], patience_s)
        try:
            shown = os.read(self._master, 65536) if ready else b""
        except OSError:  # Linux says EIO when the last program on the terminal has gone
            shown = b""
        self.screen += shown.decode(errors="replace")
        return bool(shown)


@contextlib.contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command with a controlling terminal, so that Ctrl-C becomes a signal."""
    master, slave = pty.openpty()
    program = subprocess.Popen(command, env=dict(environment), preexec_fn=lambda: os.login_tty(slave))
    os.close(slave)
    try:
        yield Terminal(program, master)
    finally:
        if program.poll() is None:
            program.kill()
            program.wait()
        os.close(master)
