"""Holds events for a reader in two forms: formatted when made, as the product does, or formatted when written.

The second form exists only for comparison. It uses the same framer, and the same backlog with its accounting, which
then holds events of one shared byte, while the deltas wait in a queue.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol, assert_never

from sluiceway.ipc.messages.to_api import Delta
from sluiceway.ipc.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.common.generation import Framer, GenerationRequest
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.protocols.openai.framer import ChatFramer, CompletionFramer
from sluiceway.response.backlog import START, Backlog, Missed
from sluiceway.response.budget import Budget
from sluiceway.response.readers import WRITE_BYTES
from sluiceway.types import SamplingParams

FormatTime = Literal["when made", "when written"]
Spoken = Literal["chat", "completions", "native"]

_STAND_IN = b"-"
_ID = "cmpl-0123456789abcdef0123456789abcdef"
_CREATED = 1_800_000_000


class WaitingEvents(Protocol):
    """The events of one reader that has read nothing yet."""

    def add(self, delta: Delta) -> None: ...

    def take(self) -> bytes:
        """Return whole events for one write; nothing if none waits."""

    @property
    def n_events(self) -> int:
        """How many events wait."""


class FormattedEvents:
    """Implements `WaitingEvents`; formats events when they are made."""

    def __init__(self, framer: Framer, budget: Budget) -> None:
        self._framer = framer
        self._backlog = Backlog(budget)
        self._cursor = START

    @property
    def n_events(self) -> int:
        return self._backlog.end.event_id - self._cursor.event_id

    def add(self, delta: Delta) -> None:
        self._backlog.push(self._framer.delta(0, delta), len(delta.token_ids))

    def take(self) -> bytes:
        if not self.n_events:
            return b""
        data, self._cursor = self._backlog.read(self._cursor, WRITE_BYTES)
        self._backlog.advance(self._cursor, self._cursor)
        return bytes(data)


class UnformattedDeltas:
    """Implements `WaitingEvents`; formats events when they are written."""

    def __init__(self, framer: Framer, budget: Budget) -> None:
        self._framer = framer
        self._backlog = Backlog(budget)
        self._deltas: deque[Delta] = deque()
        self._cursor = START

    @property
    def n_events(self) -> int:
        return len(self._deltas)

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._backlog.push(_STAND_IN, len(delta.token_ids))

    def take(self) -> bytes:
        frames: list[bytes] = []
        n_bytes = 0
        while self._deltas and n_bytes < WRITE_BYTES:
            frames.append(self._framer.delta(0, self._deltas.popleft()))
            n_bytes += len(frames[-1])
        place = self._backlog.cursor_after(self._cursor.event_id + len(frames))
        assert not isinstance(place, Missed)
        self._cursor = place
        self._backlog.advance(place, place)
        return frames[0] if len(frames) == 1 else b"".join(frames)


def held(way: FormatTime, framer: Framer, budget: Budget) -> WaitingEvents:
    return FormattedEvents(framer, budget) if way == "when made" else UnformattedDeltas(framer, budget)


def framer_of(spoken: Spoken, model: str, n_tokens: int) -> Framer:
    """Create a framer as the product does, for a stream of more than `n_tokens` tokens."""
    request = GenerationRequest(
        model=model,
        prompts=(TextPrompt("x"),),
        n=1,
        sampling=SamplingParams(max_tokens=n_tokens + 1),
        stop=(),
        stream=True,
        include_usage=True,
    )
    match spoken:
        case "chat":
            return ChatFramer(request, _ID, _CREATED)
        case "completions":
            return CompletionFramer(request, _ID, _CREATED)
        case "native":
            return NativeFramer(request, _ID, _CREATED)
        case _:
            assert_never(spoken)
