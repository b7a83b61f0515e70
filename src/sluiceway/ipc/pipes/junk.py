"""Messages that cannot be decoded: the receiver drops them, counts them, and logs them now and then."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
import structlog

from sluiceway.ipc.messages.codec import Decoder

T = TypeVar("T")

LOG_EVERY_S = 10.0
"""Seconds between two log lines about dropped messages, so that a flood of them does not fill the log."""


class DroppedMessages:
    """Counts what this process dropped, over all of its sockets. Any process that can open one can write junk to it."""

    def __init__(self) -> None:
        self.count = 0
        self._next_line_s = 0.0

    def add(self, raw: bytes, why: str) -> None:
        self.count += 1
        now_s = time.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + LOG_EVERY_S
            structlog.get_logger("wire").error("message dropped", n_bytes=len(raw), why=why, n_dropped=self.count)


dropped_messages = DroppedMessages()
"""The counter of this process. There is one, since there is one log."""


def decode_or_drop(decoder: Decoder[T], raw: bytes) -> T | None:
    """Decode a message; None if the bytes hold none."""
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:  # malformed, of another union, or with a field of another type
        dropped_messages.add(raw, str(error))
        return None
