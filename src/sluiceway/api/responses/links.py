"""What the API process is connected to, as it sees it: its pipes and its supervisor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sluiceway.ipc.messages.to_api import ToApi
from sluiceway.ipc.messages.to_child import ToChild
from sluiceway.ipc.messages.to_tokenizer import ToTokenizer
from sluiceway.runtime.loops import Reports


class Pipes(Protocol):
    """To the tokenizer and back."""

    def push(self, message: ToTokenizer) -> None:
        """Does not wait. Raises `PeerGone` if nobody is there."""

    def has_peer(self) -> bool:
        """Whether a push would reach the tokenizer now."""

    def listen(self, handle: Callable[[ToApi], None], on_fault: Callable[[Exception], None]) -> None:
        """Call `handle` with each message from now on; `on_fault` gets what it raises."""


class Control(Reports, Protocol):
    """To the supervisor and back."""

    async def take(self) -> ToChild:
        """The next order."""
