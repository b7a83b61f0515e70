"""Readers of streams: fast or slow, to the end or not. Records what each received, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sluiceway_lab.load.client import Connection, LoadError, Target, dial

_TEXT = b'"text":"'
"""In every event with a token, in every protocol but chat, and in no other event."""
_TAIL_BYTES = 4096
_CODE = re.compile(rb'"error":\{.*?"code":"(\w+)"', re.DOTALL)
_DONE = b"data: [DONE]"
_SILENCE_S = 60.0

WHOLE, CUT, LEFT = "whole", "cut", "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How a reader reads. If its connection is narrow, the server notices immediately when it stops."""

    sleep_s: float = 0.0
    """It sleeps for this time after each read."""
    n_tokens: int | None = None
    """It leaves after this many tokens; None: it reads to the end."""
    n_reads: int | None = None
    """It leaves after this number of reads."""
    for_s: float = 600.0
    """It leaves after this time."""
    resets: bool = False
    """It leaves abruptly (RST) instead of in order (FIN)."""
    is_narrow: bool = False


@dataclass(slots=True)
class Reading:
    """What a reader received. `end` is `WHOLE`, `CUT`, `LEFT` or the code of an error."""

    started_s: float
    token_s: list[float] = field(default_factory=list)
    n_bytes: int = 0
    end: str = LEFT
    ended_s: float = 0.0
    _tail: bytes = b""

    @property
    def n_tokens(self) -> int:
        return len(self.token_s)

    @property
    def completion_s(self) -> float:
        """From the request to the last token."""
        return self.token_s[-1] - self.started_s if self.token_s else 0.0

    @property
    def itls_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]

    def take(self, raw: bytes) -> None:
        """Take what one read returned; nothing if the server has closed."""
        self.n_bytes += len(raw)
        # Search each byte once: keep less of the earlier bytes than one pattern.
        searched = self._tail[len(self._tail) - len(_TEXT) + 1 :] + raw if self._tail else raw
        self.token_s += [time.perf_counter()] * searched.count(_TEXT)
        self._tail = (self._tail + raw)[-_TAIL_BYTES:]

    def close(self) -> None:
        """Judge the end of the stream by its last bytes."""
        code = _CODE.search(self._tail)
        self.end = code[1].decode() if code else WHOLE if _DONE in self._tail else CUT


async def read(target: Target, request: bytes, habit: Habit) -> Reading:
    """Read one stream in this way. Raises `LoadError` if no server listens, and for a silence of a minute."""
    reading = Reading(time.perf_counter())
    async with dial(target, is_narrow=habit.is_narrow) as connection:
        connection.send(request)
        await _read(connection, habit, reading)
        reading.ended_s = time.perf_counter()
        if reading.end == LEFT and habit.resets:
            connection.reset()
    return reading


@contextlib.asynccontextmanager
async def stalled(target: Target, request: bytes, *, is_narrow: bool = False) -> AsyncIterator[Connection]:
    """Send a request for the length of the block, and read nothing until the caller resumes the connection."""
    async with dial(target, is_narrow=is_narrow) as connection:
        connection.stall()
        connection.send(request)
        yield connection


async def _read(connection: Connection, habit: Habit, reading: Reading) -> None:
    n_reads = 0
    while not _has_enough(habit, reading, n_reads):
        left_s = reading.started_s + habit.for_s - time.perf_counter()
        try:
            raw = await connection.read_some(min(left_s, _SILENCE_S))
        except LoadError:
            if left_s < _SILENCE_S:
                return
            raise
        if not raw:
            reading.close()
            return
        reading.take(raw)
        n_reads += 1
        if habit.sleep_s:
            connection.stall()
            await asyncio.sleep(habit.sleep_s)
            connection.resume()


def _has_enough(habit: Habit, reading: Reading, n_reads: int) -> bool:
    return (
        (habit.n_tokens is not None and reading.n_tokens >= habit.n_tokens)
        or (habit.n_reads is not None and n_reads >= habit.n_reads)
        or time.perf_counter() - reading.started_s > habit.for_s
    )
