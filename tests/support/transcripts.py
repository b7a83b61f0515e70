"""Transcripts of streams, written by a test."""

from __future__ import annotations

from typing import Any

from sluiceway_lab.load.transcript import Event, Transcript

DONE = None


def event_of(text: str = "", reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """An event of a completion."""
    return {"id": "a", "choices": [{"index": 0, "text": text, "finish_reason": reason}]} | fields


def stream_of(*events: dict[str, Any] | None, is_whole: bool = True) -> Transcript:
    """A stream of these events, one per second."""
    timed = tuple(Event(float(place), data) for place, data in enumerate(events))
    return Transcript(timed, n_comments=0, is_whole=is_whole)


def transcript(*texts: str, at_s: float = 0.0) -> Transcript:
    """A stream of these pieces, one per second from `at_s` on."""
    timed = tuple(Event(at_s + place, event_of(text)) for place, text in enumerate(texts))
    return Transcript(timed, n_comments=0, is_whole=True)
