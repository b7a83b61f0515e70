"""A condition that functions wait for: each is called once, as soon as the condition holds."""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """A condition, and the functions that wait for it. Unlike `asyncio.Event` it needs no loop."""

    __slots__ = ("_waiting", "holds")

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._waiting: list[Callable[[], None]] = []

    def set(self, holds: bool) -> None:
        """Note whether the condition holds now. If it does, call the waiting functions."""
        self.holds = holds
        while self._waiting and self.holds:
            self._waiting.pop()()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the condition holds; immediately if it holds now."""
        if self.holds:
            callback()
        else:
            self._waiting.append(callback)
