"""Parses a recorded completion stream: when its text came, how much, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluiceway_lab.load.replies import LoadError, Recording, parse_reply
from sluiceway_lab.load.transcript import events_of, read_transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One completion. The token counts are those of the server's usage, None without one."""

    started_s: float
    chunk_s: tuple[float, ...]
    """When each event with text arrived."""
    text: str
    finish_reason: str | None
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
    transcript = read_transcript(parse_reply(recording.reads))
    for error in transcript.errors:
        raise LoadError(f"the server broke off the answer: {error}")
    if transcript.n_after_done is None:
        raise LoadError("the server broke off the answer")
    texts = [part for part in transcript.parts if part.text]
    if not texts:
        raise LoadError("the server answered without a text")
    reasons = [part.finish_reason for part in transcript.parts if part.finish_reason]
    # Some servers repeat the growing usage in every chunk. The last one counts.
    usages = (event.usage for event in reversed(transcript.events))
    usage: dict[str, Any] = next((usage for usage in usages if isinstance(usage, dict)), {})
    return Answer(
        started_s=recording.started_s,
        chunk_s=tuple(part.at_s for part in texts),
        text="".join(part.text for part in texts),
        finish_reason=reasons[-1] if reasons else None,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        n_bytes=recording.n_bytes,
    )


def text_times(recording: Recording) -> list[float]:
    """Return when each event with text arrived, also for an answer that its client left."""
    return [part.at_s for part in events_of(parse_reply(recording.reads)).parts if part.text]
