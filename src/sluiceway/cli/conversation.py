"""The messages of a chat. The roles always alternate, also after cancelled and failed answers."""

from __future__ import annotations


class Conversation:
    """Holds the turns so far, after an optional system prompt.

    A cancelled answer is kept as far as it was shown, because the user has read it and may say "go on". A question that
    got no text is removed.
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
        """Add the answer to the question that `ask` added."""
        if answer:
            self._turns.append({"role": "assistant", "content": answer})
        else:
            self._turns.pop()

    def reset(self) -> None:
        """Forget every turn, but not the system prompt."""
        self._turns.clear()
