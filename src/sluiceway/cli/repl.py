"""The loop of `chat`: it reads questions, shows answers, and handles Ctrl-C.

While an answer runs, Ctrl-C cancels the answer. A second Ctrl-C without a line in between leaves the chat, and so does
Ctrl-D. Lines that arrive together are one question.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator, Iterator

from sluiceway.cli.answers import Answers
from sluiceway.cli.conversation import Conversation
from sluiceway.errors import SluicewayError

HELP = """\
/reset   forget the conversation, but not the system prompt
/help    this list
/exit    leave; so does Ctrl-D
Lines that are pasted together are one question.
Ctrl-C   cancel the running answer; the text that was shown stays in the conversation
A line that begins with a space and a slash is sent as it is."""


class Repl:
    """Runs a chat. `read` returns the next question, or raises `EOFError`. `show` and `warn` write text.

    `failures` counts the answers that ended with an error.
    """

    def __init__(
        self,
        answers: Answers,
        conversation: Conversation,
        *,
        read: Callable[[], str],
        show: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._answers = answers
        self._conversation = conversation
        self._read = read
        self._show = show
        self._warn = warn
        self._was_interrupted = False
        self.failures = 0

    def run(self) -> None:
        """Talk until the user leaves or the input ends."""
        is_open = True
        while is_open:
            try:
                line = self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                is_open = not self._was_interrupted
                self._note_interrupt("Ctrl-C again, or Ctrl-D, leaves")
            else:
                self._was_interrupted = False
                is_open = self._take(line)

    def _note_interrupt(self, hint: str) -> None:
        if not self._was_interrupted:
            self._warn(f"\n({hint})")
        self._was_interrupted = True

    def _take(self, line: str) -> bool:
        """Handle a line. Returns False if it asks to leave."""
        match line.rstrip():
            case "":
                pass
            case "/exit":
                return False
            case "/reset":
                self._conversation.reset()
                self._warn("(forgotten)")
            case "/help":
                self._warn(HELP)
            case text if text.startswith("/") and "\n" not in text:
                self._warn(f"there is no command {text.split()[0]}; /help lists them")
            case text:
                self._answer(text.strip())
        return True

    def _answer(self, text: str) -> None:
        self._conversation.ask(text)
        shown: list[str] = []
        pieces = self._answers.stream(self._conversation.messages)
        try:
            self._show_all(pieces, shown)
        except KeyboardInterrupt:
            self._note_interrupt("cancelled; Ctrl-C again leaves")
        except SluicewayError as error:
            self.failures += 1
            self._warn(f"\nerror: {error}" if shown else f"error: {error}")
        finally:
            with ignore_interrupts():
                pieces.close()
                self._conversation.settle("".join(shown))

    def _show_all(self, pieces: Generator[str, None, None], shown: list[str]) -> None:
        for piece in pieces:
            shown.append(piece)
            self._show(piece)
        self._show("\n")


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C during a short cleanup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
