"""The connections of the API process: to the tokenizer, and to the supervisor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sluiceway.ipc.messages.to_api import ToApi
from sluiceway.ipc.messages.to_child import ToChild
from sluiceway.ipc.messages.to_tokenizer import ToTokenizer
from sluiceway.runtime.loops import Reports


class Pipes(Protocol):
    """The pipes to the tokenizer and back."""

    def push(self, message: ToTokenizer) -> None:
        """Send without waiting. Raises `PeerGone` if the tokenizer is not connected."""

    def has_peer(self) -> bool:
        """True when a push would reach the tokenizer now."""

    def listen(self, handle: Callable[[ToApi], None], on_fault: Callable[[Exception], None]) -> None:
        """Call `handle` with each message from now on; `on_fault` gets what it raises."""


class Control(Reports, Protocol):
    """The control pipe to the supervisor and back."""

    async def take(self) -> ToChild:
        """The next order."""
