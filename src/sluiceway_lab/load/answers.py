"""Parses a recorded completion stream: when its text came, how much, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway.sse.decoder import Decoder
from sluiceway_lab.load.replies import LoadError, Read, Recording, Reply, parse_reply

_DONE = "[DONE]"


class _TextChoice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _TokenCounts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _CompletionChunk(msgspec.Struct):
    choices: list[_TextChoice] = []
    usage: _TokenCounts | None = None
    error: Any = None


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
    reply = parse_reply(recording.reads)
    if reply.status != 200:
        raise LoadError(f"the server refused ({reply.status}): {complaint(reply.body)}")
    chunks = list(_chunks_of(reply))
    texts = [(at_s, choice.text) for at_s, chunk in chunks for choice in chunk.choices if choice.text]
    if not texts:
        raise LoadError("the server answered without a text")
    reasons = [choice.finish_reason for _, chunk in chunks for choice in chunk.choices if choice.finish_reason]
    # Some servers repeat the growing usage in every chunk. The last one counts.
    usage = next((chunk.usage for _, chunk in reversed(chunks) if chunk.usage is not None), _TokenCounts())
    return Answer(
        started_s=recording.started_s,
        chunk_s=tuple(at_s for at_s, _ in texts),
        text="".join(text for _, text in texts),
        finish_reason=reasons[-1] if reasons else None,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        n_bytes=recording.n_bytes,
    )


def text_times(recording: Recording) -> list[float]:
    """Return when each event with text arrived, also for an answer that its client left."""
    reply = parse_reply(recording.reads)
    return [at_s for at_s, chunk in _parsed(reply.pieces) if any(choice.text for choice in chunk.choices)]


def complaint(body: bytes) -> str:
    """Return the message of an error in any of the usual forms."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace").strip() or "no reason given"
    return _message(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def _chunks_of(reply: Reply) -> Iterator[tuple[float, _CompletionChunk]]:
    is_done = False
    for at_s, chunk in _parsed(reply.pieces):
        if chunk is _END:
            is_done = True
        elif chunk.error is not None:
            raise LoadError(f"the server broke off the answer: {_message(chunk.error)}")
        else:
            yield at_s, chunk
    if not is_done:
        raise LoadError("the server broke off the answer")


_END = _CompletionChunk()
"""Stands for the event that ends the stream."""


def _parsed(pieces: list[Read]) -> Iterator[tuple[float, _CompletionChunk]]:
    decoder = Decoder()
    for at_s, raw in pieces:
        for event in decoder.feed(raw):
            yield at_s, _END if event.data == _DONE else _parse(event.data)


def _parse(data: str) -> _CompletionChunk:
    try:
        return msgspec.json.decode(data, type=_CompletionChunk)
    except msgspec.DecodeError as fault:
        raise LoadError(f"the server sent an event that is no completion: {fault}") from fault


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
