"""Cuts streams at random tokens. Three clients resume them with `Last-Event-ID`."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import httpx
import msgspec
from httpx_sse import EventSource, ServerSentEvent

from sluiceway_lab.load.browser import Page, own_page
from sluiceway_lab.load.client import LoadError, complaint, dial, parse_reply
from sluiceway_lab.load.proxies import Cut, ProxyRules, own_proxy, relay
from sluiceway_lab.load.target_server import COMPLETIONS, TargetServer

_SILENCE_S = 30.0
_BROWSER_S = 120.0
_EVENT_END = b"\n\n"
_HEAD_END = b"\r\n\r\n"
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_TEXTS = re.compile(rb'"text":"((?:[^"\\]|\\.)*)"')
_STREAMS = "/v1/streams/"
_SCRIPT = resources.files("sluiceway_lab.load").joinpath("event_source.js")


@dataclass(frozen=True, slots=True)
class CutPlan:
    """One stream and its cuts.

    A cut is a share of what an even division leaves for each connection. `resets` says which cuts are abrupt.
    """

    stream_id: str
    prompt: str
    n_tokens: int
    cuts: tuple[float, ...]
    resets: tuple[bool, ...]
    hears_out: bool = True
    """True if the client waits until the server tells it to stop. Otherwise it stops by itself at the end."""

    @classmethod
    def drawn(cls, stream_id: str, prompt: str, n_tokens: int, n_cuts: int, *, hears_out: bool = True) -> CutPlan:
        drawing = random.Random(stream_id)
        cuts = tuple(drawing.random() for _ in range(n_cuts))
        return cls(stream_id, prompt, n_tokens, cuts, tuple(drawing.random() < 0.5 for _ in cuts), hears_out)

    def after_events(self) -> Sequence[int]:
        """Return how many events are read on each connection before it is cut."""
        return [int(share * self.n_tokens / len(self.cuts)) for share in self.cuts]

    def after_bytes(self, n_bytes: int) -> Sequence[int]:
        """Return how many bytes of each connection are forwarded before it is cut, at least one.

        The whole answer has `n_bytes`.
        """
        return [1 + int(share * (n_bytes - 1) / len(self.cuts)) for share in self.cuts]

    def body(self, server: TargetServer) -> dict[str, Any]:
        fields = {"stream_id": self.stream_id, "resumable": True, "on_disconnect": "detach"}
        return server.body(self.prompt, self.n_tokens, sluiceway=fields)


@dataclass(slots=True)
class ReceivedStream:
    """What all connections of a client brought, in order.

    `waits_s` are the times from each resumption to the first event, or to the end.
    """

    events: bytes = b""
    n_cuts: int = 0
    n_after_end: int = 0
    """How many answers said that the stream has ended (204)."""
    waits_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a client received in pieces, the replay of the whole stream, and the answer to the same prompt uncut."""

    received: ReceivedStream
    replay: bytes
    uncut: bytes

    @property
    def has_same_bytes(self) -> bool:
        return self.received.events == self.replay

    @property
    def has_same_text(self) -> bool:
        return _TEXTS.findall(self.received.events) == _TEXTS.findall(self.uncut)

    @property
    def is_in_order(self) -> bool:
        """True if no event is missing or repeated."""
        ids = [int(number) for number in _ID.findall(self.received.events)]
        return ids == list(range(1, len(ids) + 1))


Client = Callable[[TargetServer, CutPlan, bytes], Awaitable[ReceivedStream]]
"""Reads a stream to its end, through all its cuts. It also gets the same answer without a cut."""


async def resumed(server: TargetServer, plan: CutPlan, client: Client) -> Resumed:
    """Raises `LoadError` if the server refuses."""
    uncut = await _part(server, server.request(plan.prompt, plan.n_tokens), None, resets=False)
    received = await client(server, plan, uncut.events)
    replay = await _part(server, _resume_request(server, plan.stream_id, b""), None, resets=False)
    return Resumed(received, replay.events, uncut.events)


async def own_client(server: TargetServer, plan: CutPlan, uncut: bytes) -> ReceivedStream:
    """Use bare connections, and close them in order or abruptly."""
    request = server.target.request("POST", COMPLETIONS, plan.body(server))
    received = ReceivedStream(n_cuts=len(plan.cuts))
    last_id = b""
    for cut, resets in zip([*plan.after_events(), None], [*plan.resets, False], strict=True):
        part = await _part(server, request, cut, resets=resets)
        if request.startswith(b"GET"):
            received.waits_s.append(part.first_s)
        received.events += part.events
        received.n_after_end += part.status == 204
        last_id = (_ID.findall(part.events) or [last_id])[-1]
        request = _resume_request(server, plan.stream_id, last_id)
    return received


@dataclass(frozen=True, slots=True)
class _StreamPart:
    """What one connection brought: whole events, until the first after the cut or the end of the stream."""

    events: bytes
    status: int
    first_s: float


async def _part(server: TargetServer, request: bytes, cut: int | None, *, resets: bool) -> _StreamPart:
    """Read until this many events have come, or to the end."""
    started_s, first_s, raw = time.perf_counter(), 0.0, b""
    async with dial(server.target) as connection:
        connection.send(request)
        while cut is None or _HEAD_END not in raw or raw.count(b"data: ") < cut:
            piece = await connection.read_some(_SILENCE_S)
            raw += piece
            if not first_s and (b"data: " in raw or not piece):
                first_s = time.perf_counter() - started_s
            if not piece:
                break
        if resets:
            connection.reset()
    reply = parse_reply([(0.0, raw)])
    if reply.status not in (200, 204):
        raise LoadError(f"the server refused ({reply.status}): {complaint(reply.body)}")
    end = reply.body.rfind(_EVENT_END) + len(_EVENT_END)
    return _StreamPart(reply.body[:end] if _EVENT_END in reply.body else b"", reply.status, first_s)


def _resume_request(server: TargetServer, stream_id: str, last_id: bytes) -> bytes:
    """Resume after that event; without one, from the beginning."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id.decode()} if last_id else {})
    return server.target.request("GET", f"{_STREAMS}{stream_id}", headers=headers)


async def library_client(server: TargetServer, plan: CutPlan, uncut: bytes) -> ReceivedStream:
    """Use the package httpx-sse with httpx, as a program would. It closes in order."""
    received = ReceivedStream(n_cuts=len(plan.cuts))
    last_id = ""
    async with httpx.AsyncClient(base_url=server.target.url, timeout=_SILENCE_S, trust_env=False) as client:
        asking = client.stream("POST", COMPLETIONS, json=plan.body(server))
        for n_before, cut in enumerate([*plan.after_events(), None]):
            started_s = time.perf_counter()
            async with asking as response:
                if response.status_code not in (200, 204):
                    raise LoadError(f"the server refused ({response.status_code}): {complaint(await response.aread())}")
                received.n_after_end += response.status_code == 204
                taken = await _take(response, cut)
            received.waits_s += [at_s - started_s for at_s, _ in taken[:1] if n_before]
            received.events += b"".join(block(event.id, event.data) for _, event in taken)
            last_id = taken[-1][1].id if taken else last_id
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last_id} if last_id else {})
            asking = client.stream("GET", f"{_STREAMS}{plan.stream_id}", headers=headers)
    return received


async def _take(response: httpx.Response, cut: int | None) -> list[tuple[float, ServerSentEvent]]:
    """Return the first events of an answer, or all, each with the time of its arrival."""
    taken: list[tuple[float, ServerSentEvent]] = []
    if response.status_code == 204 or cut == 0:
        return taken
    async for event in EventSource(response).aiter_sse():
        taken.append((time.perf_counter(), event))
        if len(taken) == cut:
            break
    return taken


def block(event_id: str, data: str) -> bytes:
    """Format an event as the server does, from what a decoder returned."""
    return f"id: {event_id}\ndata: {data}\n\n".encode()


@dataclass(slots=True)
class BrowserClient:
    """A page that follows streams with the browser's own EventSource. A relay cuts the connections."""

    page: Page
    cuts: dict[str, list[Cut]]

    async def __call__(self, server: TargetServer, plan: CutPlan, uncut: bytes) -> ReceivedStream:
        lengths = zip(plan.after_bytes(len(uncut)), plan.resets, strict=True)
        self.cuts[plan.stream_id] = [Cut(n_bytes, resets) for n_bytes, resets in lengths]
        asked = {
            "path": COMPLETIONS,
            "body": plan.body(server),
            "streamId": plan.stream_id,
            "stopsItself": not plan.hears_out,
        }
        script = f"{_SCRIPT.read_text()}({msgspec.json.encode(asked).decode()})"
        found = await self.page.evaluate(script, _BROWSER_S)
        n_left = len(self.cuts.pop(plan.stream_id))
        return ReceivedStream(
            b"".join(block(event_id, data) for event_id, data in found["events"]),
            n_cuts=len(plan.cuts) - n_left,
            n_after_end=found["stopped"],
            waits_s=[wait_ms / 1e3 for wait_ms in found["waits"]],
        )


@contextlib.asynccontextmanager
async def browser_client(server: TargetServer) -> AsyncIterator[tuple[TargetServer, BrowserClient]]:
    """Start Chromium, nginx and a relay in front of a server.

    Yields the server at its address behind the proxy, and the client.
    """
    cuts: dict[str, list[Cut]] = {}

    def choose(connection: str) -> Cut | None:
        method, path, *_ = connection.split()
        left = cuts.get(path.removeprefix(_STREAMS)) if method == "GET" else None
        return left.pop(0) if left else None

    async with relay(server.target, choose) as between:
        with own_proxy(between, ProxyRules(http_version="1.1")) as target:
            async with own_page(target.url) as page:
                yield replace(server, target=target), BrowserClient(page, cuts)
