"""A client of the native protocol, which sends token ids event by event."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.event import ServerEvent
from sluiceway_lab.load.client import LoadError, Reply, complaint, record
from sluiceway_lab.load.target_server import TargetServer

_GREEDY = {"temperature": 0, "ignore_eos": True}
"""Every answer has all its tokens, and is the same each time."""


@dataclass(frozen=True, slots=True)
class NativeStream:
    """A whole streamed answer."""

    events: tuple[ServerEvent, ...]
    n_bytes: int
    """Bytes of the body: events, and what is between them."""

    def fields(self, name: str) -> list[dict[str, Any]]:
        """Return the data of the events with this name."""
        return [msgspec.json.decode(event.data) for event in self.events if event.event == name]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token["id"] for token in self.fields("token") if token["id"] is not None)

    @property
    def leads(self) -> tuple[float, ...]:
        """For each token, the distance of the two likeliest logprobs.

        Needs a request with `logprobs` of 2 or more.
        """
        tops = [token["top"] for token in self.fields("token") if token["id"] is not None]
        return tuple(top[0]["logprob"] - top[1]["logprob"] for top in tops)

    @property
    def text(self) -> str:
        return "".join(token["text"] for token in self.fields("token"))


def stream_request(server: TargetServer, prompt: str, n_tokens: int, **fields: Any) -> bytes:
    """Make a request for a greedy stream. `fields` replace others."""
    return _request(server, "/v1/stream", prompt, n_tokens, fields)


def generate_request(server: TargetServer, prompt: str, n_tokens: int, **fields: Any) -> bytes:
    """Make a request for the same answer as one object."""
    return _request(server, "/v1/generate", prompt, n_tokens, fields)


async def generate(server: TargetServer, prompt: str, n_tokens: int, **fields: Any) -> dict[str, Any]:
    """Return that object. Raises `LoadError`."""
    reply = await _asked(server, generate_request(server, prompt, n_tokens, **fields))
    answer: dict[str, Any] = msgspec.json.decode(reply.body)
    return answer


async def stream(server: TargetServer, prompt: str, n_tokens: int, **fields: Any) -> NativeStream:
    """Raises `LoadError` for a refusal, and for a stream without `done`."""
    return read_stream(await _asked(server, stream_request(server, prompt, n_tokens, **fields)))


async def streams(
    server: TargetServer, texts: Sequence[str], n_tokens: int, fields: Sequence[Mapping[str, Any]]
) -> list[NativeStream]:
    """Request all at the same time, each on its own connection and with its own fields."""
    pairs = zip(texts, fields, strict=True)
    return list(await asyncio.gather(*(stream(server, text, n_tokens, **own) for text, own in pairs)))


def read_stream(reply: Reply) -> NativeStream:
    """Raises `LoadError` for a stream without `done`."""
    decoder = EventDecoder()
    events = tuple(decoder.feed(reply.body))
    if not events or events[-1].event != "done":
        raise LoadError(f"the stream did not end with done: {events[-1].data if events else 'it was empty'}")
    return NativeStream(events, len(reply.body))


def _request(server: TargetServer, path: str, prompt: str, n_tokens: int, fields: dict[str, Any]) -> bytes:
    body = {"model": server.model, "prompt": prompt, "max_tokens": n_tokens, **_GREEDY} | fields
    return server.target.request("POST", path, body)


async def _asked(server: TargetServer, request: bytes) -> Reply:
    reply = (await record(server.target, request)).reply()
    if reply.status != 200:
        raise LoadError(f"the server refused ({reply.status}): {complaint(reply.body)}")
    return reply
