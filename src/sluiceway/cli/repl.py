"""The loop of `chat`: lines in, answers out, and what Ctrl-C means at each moment.

While an answer runs, Ctrl-C cancels the answer. At the prompt, Ctrl-C leaves if the one before it was not followed by a
line; so a second one always leaves. Ctrl-D leaves. Lines that come together are one question.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator, Iterator

from sluiceway.cli.answers import Answers
from sluiceway.cli.conversation import Conversation
from sluiceway.errors import SluicewayError

HELP = """\
/reset   forget the conversation (the system text stays)
/help    this list
/exit    leave; so does Ctrl-D
Lines that are pasted together are one question.
Ctrl-C   cancel the running answer; what was shown of it stays in the conversation
A line that begins with a space and a slash is sent as it is."""


class Repl:
    """`read` gives the next question and raises `EOFError` at the end; `show` and `warn` write as they are told.

    `failures` counts the answers that ended in an error.
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
        """Returns when the user leaves or the input ends."""
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
        """Returns False when the line asks to leave."""
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
            with deaf_to_interrupts():
                pieces.close()
                self._conversation.settle("".join(shown))

    def _show_all(self, pieces: Generator[str, None, None], shown: list[str]) -> None:
        for piece in pieces:
            shown.append(piece)
            self._show(piece)
        self._show("\n")


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Lets a short piece of cleaning up finish, however often Ctrl-C is pressed."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
