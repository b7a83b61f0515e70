"""Drives an ASGI application by hand, unlike any HTTP client: its reader can stall, take single writes, or vanish.

`FakeUpstream` replaces tokenizer and engine: it records what the API process sends, and sends what a test wants.
"""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from starlette.types import ASGIApp, Message
from structlog.typing import FilteringBoundLogger

from sluiceway.api.app import build_app
from sluiceway.api.context import AppContext
from sluiceway.api.http.chunks import ChunkWriter, offer_chunks
from sluiceway.api.http.request import BodyLimits, Intake
from sluiceway.api.responses.defaults import StreamDefaults
from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.config import ModelFiles, ModelKind, ServeConfig, StreamsConfig
from sluiceway.errors import PeerGone, Refusal
from sluiceway.ipc.messages.codec import encode
from sluiceway.ipc.messages.to_api import Accepted, AuditReport, Delta, EngineIsUp, Event, Events, Finished, Rejected
from sluiceway.ipc.messages.to_child import Role
from sluiceway.ipc.messages.to_tokenizer import AuditQuery, Cancel, FromApi, Tokenize, TokenizeEncoded, ToTokenizer
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.generation import Endpoint
from sluiceway.protocols.common.reading import body_reader
from sluiceway.protocols.endpoints import ENDPOINTS
from sluiceway.runtime.worker import WorkerError
from sluiceway.types import EngineFacts, EngineStats, FinishReason, Piece, Rid

MODEL = "fake-model"
FACTS = EngineFacts(max_model_len=256, max_sequence_tokens=200, vocab_size=256, n_blocks=64, block_tokens=16)


def record_log() -> tuple[FilteringBoundLogger, list[dict[str, Any]]]:
    """A log, and the list of its lines; `event` is the sentence of a line."""
    lines: list[dict[str, Any]] = []

    def keep(_: object, level: str, fields: Any) -> Any:
        lines.append({**fields, "level": level})
        raise structlog.DropEvent

    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(io.StringIO()),
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
    )
    return log, lines


class FakeUpstream:
    """Scripted tokenizer and engine. With `script`, each request is answered with these texts, one per step."""

    def __init__(self) -> None:
        self.dispatcher: Dispatcher
        self.pushed: list[FromApi] = []
        self.is_gone = False
        self.script: list[str] | None = None
        self.audit: AuditReport | None = None
        self._has_pushed = asyncio.Event()

    def push(self, message: ToTokenizer) -> None:
        if self.is_gone:
            raise PeerGone("no process is there")
        if isinstance(message, TokenizeEncoded):
            message = msgspec.msgpack.decode(encode(message), type=Tokenize)
        self.pushed.append(message)
        self._has_pushed.set()
        match message:
            case Tokenize() if self.script is not None:
                asyncio.get_running_loop().call_soon(self._play, message.rids, self.script)
            case Cancel() if self.script is not None:
                asyncio.get_running_loop().call_soon(self.end_cancelled, message)
            case AuditQuery(query_id) if self.audit is not None:
                report = AuditReport(
                    query_id=query_id,
                    engine=self.audit.engine,
                    live=self.audit.live,
                    violations=self.audit.violations,
                    tokenizer_encoding=0,
                    tokenizer_decoding=0,
                )
                asyncio.get_running_loop().call_soon(self.dispatcher.receive, report)
            case _:
                pass

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds after a push. Raises `TimeoutError` after two minutes."""
        async with asyncio.timeout(120.0):
            while not condition():
                self._has_pushed.clear()
                await self._has_pushed.wait()

    @property
    def requests(self) -> list[Tokenize]:
        return [message for message in self.pushed if isinstance(message, Tokenize)]

    @property
    def cancels(self) -> list[Cancel]:
        return [message for message in self.pushed if isinstance(message, Cancel)]

    @property
    def rid(self) -> Rid:
        """The first id of the latest request."""
        return self.requests[-1].rids[0]

    def say(self, *events: Event, stats: EngineStats | None = None) -> None:
        """Send one message with these events."""
        self.dispatcher.receive(Events(events=list(events), stats=stats))

    def accept(self, *rids: Rid, prompt_tokens: int = 5, cached_tokens: int = 0) -> None:
        self.say(*(Accepted(rid, prompt_tokens, cached_tokens) for rid in rids or self.requests[-1].rids))

    def speak(self, text: str, rid: Rid | None = None, n_tokens: int = 1) -> None:
        self.say(Delta(self.rid if rid is None else rid, text, tuple(range(n_tokens))))

    def finish(
        self,
        rid: Rid | None = None,
        reason: FinishReason = FinishReason.STOP,
        completion_tokens: int = 1,
        refusal: Refusal | None = None,
    ) -> None:
        self.say(finished(self.rid if rid is None else rid, reason, completion_tokens, refusal))

    def reject(self, refusal: Refusal) -> None:
        self.say(Rejected(self.requests[-1].rids, refusal))

    def end_cancelled(self, cancel: Cancel) -> None:
        """Answer a cancel as the engine does."""
        self.say(*(finished(rid, cancel.reason, 0) for rid in cancel.rids))

    def _play(self, rids: tuple[Rid, ...], script: Iterable[str]) -> None:
        self.say(*(Accepted(rid, 5, 0) for rid in rids))
        texts = list(script)
        for text in texts:
            self.say(*(Delta(rid, text, (0,)) for rid in rids))
        self.say(*(finished(rid, FinishReason.STOP, len(texts)) for rid in rids))


def finished(
    rid: Rid, reason: FinishReason = FinishReason.STOP, completion_tokens: int = 1, refusal: Refusal | None = None
) -> Finished:
    return Finished(rid=rid, reason=reason, completion_tokens=completion_tokens, refusal=refusal)


class FakeWorker:
    """Reads bodies in this process when a test allows it, or fails."""

    def __init__(self, endpoints: Sequence[Endpoint] = ENDPOINTS) -> None:
        self._endpoints = endpoints
        self.n_jobs = 0
        self.error: WorkerError | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def run(self, *parts: bytes) -> bytes:
        self.n_jobs += 1
        await self.may_read.wait()
        if self.error is not None:
            raise self.error
        try:
            return body_reader(self._endpoints, MODEL)(b"".join(parts))
        finally:
            gc.enable()  # a worker process does not need it


class Api:
    """A dispatcher and its application, with a fake upstream; it serves from the start."""

    def __init__(
        self,
        *,
        limits: BodyLimits | None = None,
        is_serving: bool = True,
        max_sequences: int = 64,
        streams: StreamsConfig | None = None,
        endpoints: Sequence[Endpoint] = ENDPOINTS,
    ) -> None:
        self.upstream = FakeUpstream()
        self.metrics = Metrics()
        self.log, self.lines = record_log()
        self.now_s = 0.0
        self.processes = {"api": 1}
        self.worker = FakeWorker(endpoints)
        self.dispatcher = Dispatcher(
            push=self.upstream.push,
            has_peer=lambda: True,
            next_rid=itertools.count(1).__next__,
            clock=lambda: self.now_s,
            metrics=self.metrics,
            log=self.log,
            max_sequences=max_sequences,
            streams=streams or StreamsConfig(),
        )
        self.upstream.dispatcher = self.dispatcher
        if is_serving:
            self.dispatcher.receive(EngineIsUp(FACTS))
            self.dispatcher.peer_up(Role.TOKENIZER)
            self.dispatcher.peer_up(Role.ENGINE)
        ids = map("id{}".format, itertools.count(1))
        model = ModelFiles(kind=ModelKind.FAKE, path="", name=MODEL)
        config = ServeConfig(model=model, streams=streams or StreamsConfig())
        limits = limits or BodyLimits(config.max_body_bytes)
        context = AppContext(
            dispatcher=self.dispatcher,
            metrics=self.metrics,
            log=self.log,
            intake=Intake(MODEL, limits, self.worker, lambda: self.dispatcher.prompt_room, self.log),
            defaults=StreamDefaults(config.streams),
            new_id=lambda: next(ids),
            now_s=lambda: 1_700_000_000.5,
            processes=self.processes,
            endpoints=endpoints,
        )
        self.app: ASGIApp = build_app(config, context)

    @property
    def delivered_tokens(self) -> int:
        self.dispatcher.registry.census()  # updates the counts of tokens
        return int(self.metrics.delivered_tokens.value)

    @property
    def wasted_tokens(self) -> float:
        self.dispatcher.registry.census()
        return int(self.metrics.wasted_tokens.value)

    def assert_quiet(self) -> None:
        """Check that nothing is held."""
        account = self.dispatcher.account()
        assert (account["sessions"], account["live"], account["tombstones"]) == (0, 0, 0), account
        assert self.dispatcher.violations() == []


def completion(**fields: Any) -> bytes:
    """The body of a completion request."""
    return json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 16} | fields).encode()


def chat(**fields: Any) -> bytes:
    """The body of a chat request."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]} | fields).encode()


class _Chunks(ChunkWriter):
    """Writes to a driver while its client reads."""

    def __init__(self, driver: AsgiDriver) -> None:
        self.on_writable = self.on_lost = lambda: None
        self.is_watched = False
        self._driver = driver

    @property
    def is_writable(self) -> bool:
        return self._driver.reads

    @property
    def held_bytes(self) -> int:
        return 0

    @property
    def unsent_bytes(self) -> int:
        return self._driver.unsent_bytes

    def watch(self, on_lost: Callable[[], None]) -> None:
        self.on_lost = on_lost
        if self._driver.has_left:
            on_lost()

    def abort(self) -> None:
        self._driver.vanish()

    def write(self, piece: Piece) -> int:
        assert self.is_writable, "written without room"
        self._driver.write(piece)
        return 0


class AsgiDriver:
    """One request to an ASGI application, and its client, which reads or stops reading."""

    def __init__(
        self,
        app: ASGIApp,
        method: str = "GET",
        path: str = "/",
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        sends_all: bool = True,
        offers_chunks: bool = False,
    ) -> None:
        """`body` may come in pieces; with `sends_all` False the last piece never comes.

        With `offers_chunks` a response can write directly, as with the server's own HTTP protocol.
        """
        self.sent: list[Message] = []
        self.written: list[Piece] = []
        """Bytes that were written without `send`."""
        self.unsent_bytes = 0
        """Bytes that its transport still holds."""
        self._app = app
        pieces = [body] if isinstance(body, bytes) else list(body)
        self.pieces = [
            {"type": "http.request", "body": piece, "more_body": not sends_all or i < len(pieces) - 1}
            for i, piece in enumerate(pieces)
        ]
        """Messages of the body that the server has not read yet."""
        lines = {"content-type": "application/json"} | (
            {"content-length": str(len(body))} if isinstance(body, bytes) and body else {}
        )
        if not isinstance(body, bytes):
            lines["transfer-encoding"] = "chunked"
        lines |= {name.lower(): value for name, value in (headers or {}).items()}
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }
        self.chunks = _Chunks(self)
        if offers_chunks:
            offer_chunks(self.scope, self.chunks)
        self._has_left = asyncio.Event()
        self._may_write = asyncio.Semaphore(0)
        self._stalls = False
        self.task: asyncio.Task[None] | None = None

    # The server's side.

    async def receive(self) -> Message:
        if self.pieces:
            return self.pieces.pop(0)
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._stalls:
            await self._may_write.acquire()
        if not self._has_left.is_set():
            self.sent.append(message)

    def write(self, piece: Piece) -> None:
        """Accept bytes that are written without `send`."""
        self.written.append(piece)
        self.sent.append({"type": "http.response.body", "body": bytes(piece), "more_body": True})

    # The client's side.

    @property
    def has_left(self) -> bool:
        return self._has_left.is_set()

    @property
    def reads(self) -> bool:
        """True while the client is connected and reads."""
        return not self._stalls and not self._has_left.is_set()

    def start(self) -> AsgiDriver:
        """Send the request. It is handled while the test awaits."""
        self.task = asyncio.create_task(self.run())
        return self

    async def run(self) -> None:
        """Send the request and read the whole answer."""
        await self._app(self.scope, self.receive, self.send)

    async def done(self) -> AsgiDriver:
        """Wait for the end of a started request."""
        assert self.task is not None
        await self.task
        return self

    def stall(self) -> None:
        """Stop reading: the next write does not return."""
        self._stalls = True

    def catch_up(self) -> None:
        """Read everything again; the server learns that there is room."""
        self._stalls = False
        self._may_write.release()
        self.chunks.on_writable()

    def read(self, n: int = 1) -> None:
        """Take `n` more writes while stalled."""
        for _ in range(n):
            self._may_write.release()

    def vanish(self) -> None:
        """Close the connection. A write that waits returns, as in a server."""
        self._has_left.set()
        self._stalls = False
        self._may_write.release()
        self.chunks.on_lost()

    # What came.

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def writes(self) -> list[bytes]:
        return [message.get("body", b"") for message in self.sent[1:]]

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of the events that were written. Every write has whole events."""
        assert all(write.endswith(b"\n\n") for write in self.writes if write), self.writes
        return [block.removeprefix("data: ") for block in self.body.decode().split("\n\n") if block]

    @property
    def is_over(self) -> bool:
        return bool(self.sent[1:]) and not self.sent[-1].get("more_body", False)


async def settle(until: Callable[[], object] = lambda: False, n: int = 30) -> None:
    """Let the loop run, at most `n` turns."""
    for _ in range(n):
        if until():
            return
        await asyncio.sleep(0)


async def fetch(app: ASGIApp, method: str, path: str, body: bytes = b"", **headers: str) -> AsgiDriver:
    """Send a request and return its whole answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    driver = AsgiDriver(app, method, path, body, named)
    await driver.run()
    return driver
