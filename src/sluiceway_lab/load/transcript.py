"""Parses a stream into events. Malformed streams are not refused, so that questions can judge them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluiceway.sse.decoder import EventDecoder
from sluiceway_lab.load.client import LoadError, Read, Recording, Reply, message_of

_DONE = "[DONE]"
_COMMENT = re.compile(rb"^:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ChoicePart:
    """What an event says about one choice."""

    at_s: float
    index: int
    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `data` is the decoded object; None for the event that ends the stream."""

    at_s: float
    data: dict[str, Any] | None

    @property
    def parts(self) -> list[ChoicePart]:
        choices = (self.data or {}).get("choices")
        found = choices if isinstance(choices, list) else []
        return [_part(self.at_s, choice) for choice in found if isinstance(choice, dict)]

    @property
    def usage(self) -> Any:
        return (self.data or {}).get("usage")


@dataclass(frozen=True, slots=True)
class Transcript:
    """All events of a stream. `is_whole` is True if the HTTP framing says that the body is complete."""

    events: tuple[Event, ...]
    n_comments: int
    is_whole: bool

    @property
    def parts(self) -> list[ChoicePart]:
        return [part for event in self.events for part in event.parts]

    @property
    def deltas(self) -> list[ChoicePart]:
        """The parts of the first choice that have text."""
        return [part for part in self.parts if part.text and part.index == 0]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.deltas)

    @property
    def finish_reasons(self) -> list[str]:
        """Those of the first choice."""
        return [part.finish_reason for part in self.parts if part.finish_reason and part.index == 0]

    @property
    def errors(self) -> list[str]:
        found = [event.data["error"] for event in self.events if event.data is not None and event.data.get("error")]
        return [message_of(error) for error in found]

    @property
    def ids(self) -> set[str]:
        return {str(event.data["id"]) for event in self.events if event.data is not None and "id" in event.data}

    @property
    def n_after_done(self) -> int | None:
        """The number of events after the first `[DONE]`; None without a `[DONE]`."""
        ends = [place for place, event in enumerate(self.events) if event.data is None]
        return len(self.events) - 1 - ends[0] if ends else None


def read_transcript(reply: Reply) -> Transcript:
    """Raises `LoadError` for a refusal, and for an event that is not a JSON object."""
    reply.require_ok()
    return events_of(reply)


def events_of(reply: Reply) -> Transcript:
    """Parse the events of an answer with any status."""
    return Transcript(tuple(_events(reply.pieces)), len(_COMMENT.findall(reply.body)), reply.is_whole)


def read_plain(reply: Reply) -> ChoicePart:
    """Return the first choice of an answer that was not streamed. Raises `LoadError` for a refusal or another form."""
    reply.require_ok()
    parts = Event(0.0, _object(reply.body)).parts
    if not reply.is_whole or not parts:
        raise LoadError("the server broke off its answer" if parts else "the server answered without a choice")
    return parts[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion. The token counts are those of the server's usage, None without one."""

    started_s: float
    chunk_s: tuple[float, ...]
    """When each event with text arrived."""
    prompt_tokens: int | None
    completion_tokens: int | None
    n_bytes: int
    """All bytes that the server sent, with headers and framing."""

    @property
    def n_tokens(self) -> int:
        """The server's count; without one, the number of events with text."""
        return len(self.chunk_s) if self.completion_tokens is None else self.completion_tokens

    @property
    def first_token_s(self) -> float:
        """The TTFT, from before the connection was opened."""
        return self.chunk_s[0] - self.started_s

    @property
    def itls_s(self) -> list[float]:
        """The ITLs, between events with text."""
        return [later - earlier for earlier, later in zip(self.chunk_s, self.chunk_s[1:], strict=False)]


def read_answer(recording: Recording) -> Answer:
    """Raises `LoadError` for a refusal, an error in the stream, an incomplete stream, and one without text."""
    transcript = read_transcript(recording.reply())
    for error in transcript.errors:
        raise LoadError(f"the server broke off the answer: {error}")
    if transcript.n_after_done is None:
        raise LoadError("the server broke off the answer")
    chunk_s = tuple(part.at_s for part in transcript.parts if part.text)
    if not chunk_s:
        raise LoadError("the server answered without a text")
    # Some servers repeat the growing usage in every chunk. The last one counts.
    usages = [event.usage for event in transcript.events if isinstance(event.usage, dict)]
    usage = usages[-1] if usages else {}
    return Answer(
        started_s=recording.started_s,
        chunk_s=chunk_s,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        n_bytes=recording.n_bytes,
    )


def text_times(recording: Recording) -> list[float]:
    """Return when each event with text arrived, also for an answer that its client left."""
    return [part.at_s for part in events_of(recording.reply()).parts if part.text]


def _events(pieces: list[Read]) -> Iterator[Event]:
    decoder = EventDecoder()
    for at_s, raw in pieces:
        for event in decoder.feed(raw):
            yield Event(at_s, None if event.data == _DONE else _object(event.data))


def _object(raw: str | bytes) -> dict[str, Any]:
    """Decode with the standard library, because it accepts half of a surrogate pair, which a question has to see."""
    try:
        decoded = json.loads(raw)
    except ValueError as fault:
        raise LoadError(f"the server sent what is no JSON: {fault}") from None
    if not isinstance(decoded, dict):
        raise LoadError(f"the server sent no JSON object but {type(decoded).__name__}")
    return decoded


def _part(at_s: float, choice: dict[str, Any]) -> ChoicePart:
    """Parse a choice of a completion, or of a chat, streamed or not."""
    said = choice.get("delta") or choice.get("message") or {}
    text = choice.get("text") or said.get("content") or ""
    return ChoicePart(at_s, int(choice.get("index") or 0), str(text), choice.get("finish_reason"))
