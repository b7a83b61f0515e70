"""The loop of a chat, with scripted lines and answers, and Ctrl-C at chosen moments."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence

import pytest

from sluiceway.cli.answers import Messages
from sluiceway.cli.conversation import Conversation
from sluiceway.cli.repl import HELP, Repl, ignore_interrupts
from sluiceway.errors import SluicewayError

Piece = str | BaseException


class ScriptedAnswers:
    """Answers each question with a list of pieces; an exception in it is raised. Counts closed streams."""

    def __init__(self, *answers: Sequence[Piece]) -> None:
        self._answers = list(answers)
        self.asked: list[list[str]] = []
        self.closed = 0

    def stream(self, messages: Messages) -> Generator[str, None, None]:
        self.asked.append([turn["content"] for turn in messages])
        return self._pieces(self._answers.pop(0))

    def _pieces(self, pieces: Sequence[Piece]) -> Generator[str, None, None]:
        try:
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


class Screen:
    """Runs a chat to its end, and keeps its output."""

    def __init__(self, answers: ScriptedAnswers, *typed: Piece) -> None:
        self._typed = list(typed)
        self.shown = ""
        self.warned: list[str] = []
        self.conversation = Conversation()
        self.repl = Repl(answers, self.conversation, read=self._read, show=self._show, warn=self.warned.append)
        self.repl.run()
        self.unread = self._typed

    def _read(self) -> str:
        if not self._typed:
            raise EOFError
        line = self._typed.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    def _show(self, text: str) -> None:
        self.shown += text


INTERRUPT = KeyboardInterrupt()


def test_answers_follow_their_questions() -> None:
    """Each question comes with the earlier turns. An empty line is no question."""
    answers = ScriptedAnswers(["o", "ne"], ["two"])
    screen = Screen(answers, "first", "", "  ", "second ")
    assert screen.shown == "one\ntwo\n"
    assert answers.asked == [["first"], ["first", "one", "second"]]
    assert (screen.repl.failures, answers.closed) == (0, 2)


def test_exit_leaves() -> None:
    assert Screen(ScriptedAnswers(), "/exit", "more").unread == ["more"]


def test_reset_forgets() -> None:
    """The next question comes without earlier turns."""
    answers = ScriptedAnswers(["one"], ["two"])
    Screen(answers, "first", "/reset", "second")
    assert answers.asked == [["first"], ["second"]]


def test_help_lists_the_commands() -> None:
    assert Screen(ScriptedAnswers(), "/help").warned == [HELP]
    assert all(command in HELP for command in ("/reset", "/help", "/exit", "Ctrl-C"))


def test_unknown_command_is_not_sent() -> None:
    """It may be a typing error."""
    assert Screen(ScriptedAnswers(), "/rest now").warned == ["there is no command /rest; /help lists them"]


def test_line_with_a_slash_is_sent_when_a_space_comes_first() -> None:
    """The space is removed."""
    answers = ScriptedAnswers(["a path"])
    Screen(answers, " /etc")
    assert answers.asked == [["/etc"]]


def test_interrupt_cancels_the_answer_and_not_the_chat() -> None:
    """The shown text stays in the conversation, and the stream is closed."""
    answers = ScriptedAnswers(["one", INTERRUPT, "never"], ["two"])
    screen = Screen(answers, "first", "go on")
    assert answers.asked[1] == ["first", "one", "go on"]
    assert answers.closed == 2
    assert screen.warned == ["\n(cancelled; Ctrl-C again leaves)"]


def test_interrupt_while_a_piece_is_shown_closes_the_stream() -> None:
    """Ctrl-C may come while text is written."""
    answers = ScriptedAnswers(["one", "two"])
    screen = Screen(answers)

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    lines = iter(["first"])

    def read() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    Repl(answers, screen.conversation, read=read, show=interrupted, warn=screen.warned.append).run()
    assert answers.closed == 1
    assert screen.conversation.messages[-1]["content"] == "one"


def test_interrupt_before_the_first_piece_removes_the_question() -> None:
    answers = ScriptedAnswers([INTERRUPT], ["two"])
    Screen(answers, "first", "second")
    assert answers.asked == [["first"], ["second"]]


def test_second_interrupt_leaves() -> None:
    """The first one at the prompt says so."""
    screen = Screen(ScriptedAnswers(), INTERRUPT, INTERRUPT, "more")
    assert screen.unread == ["more"]
    assert screen.warned == ["\n(Ctrl-C again, or Ctrl-D, leaves)"]


def test_interrupt_after_a_cancelled_answer_leaves() -> None:
    """It counts as the second one, as the hint says."""
    assert Screen(ScriptedAnswers([INTERRUPT]), "first", INTERRUPT, "more").unread == ["more"]


def test_line_between_two_interrupts_resets_the_count() -> None:
    answers = ScriptedAnswers(["one"], ["two"])
    screen = Screen(answers, INTERRUPT, "first", INTERRUPT, "second")
    assert screen.unread == [] and len(answers.asked) == 2


@pytest.mark.parametrize(("pieces", "warning"), [(["one"], "\nerror: it broke"), ([], "error: it broke")])
def test_failed_answer_is_shown_and_the_chat_continues(pieces: list[str], warning: str) -> None:
    """The message begins on a new line, and the failure is counted."""
    answers = ScriptedAnswers([*pieces, SluicewayError("it broke")], ["two"])
    screen = Screen(answers, "first", "second")
    assert screen.warned == [warning]
    assert screen.repl.failures == 1
    assert screen.shown.endswith("two\n")


def test_interrupts_are_ignored_during_the_cleanup() -> None:
    """They have an effect again afterwards."""
    with ignore_interrupts():
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_several_lines_with_a_slash_are_a_question() -> None:
    """A command has one line."""
    answers = ScriptedAnswers(["one"])
    Screen(answers, "/etc/hosts\nis what?")
    assert answers.asked == [["/etc/hosts\nis what?"]]
