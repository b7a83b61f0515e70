"""What was said in a chat, as messages; the roles always alternate, whatever was cancelled or went wrong."""

from __future__ import annotations


class Conversation:
    """The turns so far, after an optional system text.

    An answer that was cut short is kept as far as it was shown: the user has read it and may say "go on". A question
    that got no text at all is taken back.
    """

    def __init__(self, system: str | None = None) -> None:
        self._system = [{"role": "system", "content": system}] if system else []
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*self._system, *self._turns]

    def ask(self, text: str) -> None:
        self._turns.append({"role": "user", "content": text})

    def settle(self, answer: str) -> None:
        """Ends the turn that `ask` began."""
        if answer:
            self._turns.append({"role": "assistant", "content": answer})
        else:
            self._turns.pop()

    def reset(self) -> None:
        """Forgets every turn; the system text stays."""
        self._turns.clear()
