"""A small server in the test's own loop. It follows the OpenAI protocol, or makes one chosen mistake."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from sluiceway_lab.check.question import CheckConfig, CheckContext, Finding, Question, paced
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.target_server import meet
from sluiceway_lab.load.workload import words
from support.scripted_http import DONE, STREAM_END, STREAM_HEAD, chunk, event, usage

Fault = Literal[
    "serial",  # one request at a time
    "mixes",  # in a batch, an answer is that of another prompt
    "late headers",  # not before the first token
    "no done",  # a stream without its last event
    "half characters",  # each token is decoded by itself
    "leaks stop",  # the possible beginning of a stop string is sent immediately
    "one shot",  # the connection is closed after an answer, without notice
    "says close",  # the same, with notice
    "deaf",  # only the first request on a connection is answered
    "loses its end",  # what is held back for a stop string is not sent when the answer has its length
    "crashes",  # a wrong request is the server's fault
    "blocks",  # all wait for the slowest reader
    "runs on",  # the server does not notice that a reader has left
    "resets",  # no answer when the queue is full
    "dies",  # no drain
]

SMALL = CheckConfig(streams=4, tokens=24, long_tokens=300, burst=40, timeout_s=30.0)
_TOKEN_BYTES = 3
_GAP_S = 0.002
_PREFILL_S = 0.00005
"""For each character of a prompt."""
_BUFFER_BYTES = 4096


class ModelServer:
    """Has vLLM's gauges, since those are known. Eight requests run, and eight wait."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.slots = 1 if fault == "serial" else 8
        self.n_queued_most = 512 if fault == "serial" else 8
        self.running: list[str] = []
        self.n_waiting = 0
        self.n_generated = 0
        self.is_draining = False
        self.port = 0
        self._ids = itertools.count()
        self.pen = asyncio.Lock()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.port)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        writer.transport.set_write_buffer_limits(_BUFFER_BYTES)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer_next(reader, writer):
                pass
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        self._writers.discard(writer)
        self._tasks.discard(task)

    async def end(self) -> None:
        """Close all open connections."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    def drain(self, server: asyncio.Server) -> None:
        """Do what a server does after SIGTERM: refuse new requests, finish running ones, then stop listening."""
        self.is_draining = True
        if self.fault == "dies":
            server.close()
            for writer in self._writers:
                writer.transport.abort()
        else:
            task = asyncio.create_task(self._close_when_idle(server))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _close_when_idle(self, server: asyncio.Server) -> None:
        while self.running:  # noqa: ASYNC110
            await asyncio.sleep(_GAP_S)
        await asyncio.sleep(0.5)  # a late request still has to be refused
        server.close()

    async def _answer_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return True if the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split()
        length = next((line[15:] for line in head.split("\r\n") if line.startswith("Content-Length:")), "0")
        raw = await reader.readexactly(int(length))
        if path == "/v1/models":
            writer.write(whole(200, {"data": [{"id": "m"}]}))
        elif path == "/metrics":
            writer.write(whole(200, self.metrics()))
        elif (method, path) == ("POST", "/v1/completions"):
            await self._complete(raw, reader, writer)
        else:
            writer.write(whole(404, error("no such page")))
        await writer.drain()
        if self.fault == "deaf" and "Connection: close" not in head:
            await reader.read()
        return "Connection: close" not in head and self.fault not in ("one shot", "says close", "deaf")

    def metrics(self) -> str:
        samples = {
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": self.n_waiting,
            "vllm:generation_tokens_total": self.n_generated,
        }
        return "".join(f"{name} {value}\n" for name, value in samples.items())

    async def _complete(self, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body, wrong = checked(raw)
        if wrong:
            writer.write(whole(500 if self.fault == "crashes" else 400, error(wrong)))
        elif self.is_draining or self.n_waiting >= self.n_queued_most:
            if self.fault == "resets":
                writer.transport.abort()
            writer.write(whole(503, error("busy"), "Retry-After: 1\r\n"))
        else:
            await self._run(body, _Out(self, reader, writer, body))

    async def _run(self, body: dict[str, Any], out: _Out) -> None:
        await out.begin(is_first_token=False)
        self.n_waiting += 1
        try:
            while len(self.running) >= self.slots and not out.is_gone:  # noqa: ASYNC110
                await asyncio.sleep(_GAP_S)
        finally:
            self.n_waiting -= 1
        prompt = body["prompt"]
        self.running.append(prompt)
        try:
            if not out.is_gone:
                await self._generate(body, out)
        finally:
            self.running.remove(prompt)

    async def _generate(self, body: dict[str, Any], out: _Out) -> None:
        await asyncio.sleep(_PREFILL_S * len(body["prompt"]))
        prompt = self.running[0] if self.fault == "mixes" else body["prompt"]
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        speech = speak(prompt, body["max_tokens"], stops, self.fault if body.get("stream") else None)
        for text, reason in speech:
            await asyncio.sleep(_GAP_S)
            self.n_generated += 1
            if out.is_gone:
                return
            await out.say(text, reason)
        await out.finish(body["max_tokens"])

    def next_id(self) -> str:
        return f"cmpl-{next(self._ids)}"


class _Out:
    """One answer on its way, streamed or not."""

    def __init__(
        self, server: ModelServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._is_streamed = bool(body.get("stream"))
        self._id = server.next_id()
        self._text = ""
        self._reason: str | None = None
        self._has_begun = False

    @property
    def is_gone(self) -> bool:
        """True if the reader has left, and the server notices."""
        return self._server.fault != "runs on" and (self._reader.at_eof() or self._writer.is_closing())

    async def begin(self, *, is_first_token: bool) -> None:
        if self._is_streamed and not self._has_begun and (is_first_token or self._server.fault != "late headers"):
            self._has_begun = True
            await self._write(STREAM_HEAD)

    async def say(self, text: str, reason: str | None) -> None:
        self._text += text
        self._reason = reason
        await self.begin(is_first_token=True)
        if self._is_streamed and (text or reason):
            padding = {"padding": "x" * 1000} if self._server.fault == "blocks" else {}
            await self._write(chunk(event({"id": self._id, "choices": [choice(text, reason)], **padding})))

    async def finish(self, n_tokens: int) -> None:
        if not self._is_streamed:
            await self._write(whole(200, {"id": self._id, "choices": [choice(self._text, self._reason)]}))
            return
        await self._write(chunk(usage(1, n_tokens)))
        await self._write((b"" if self._server.fault == "no done" else chunk(DONE)) + STREAM_END)

    async def _write(self, raw: bytes) -> None:
        if self._server.fault == "runs on" and (self._reader.at_eof() or self._writer.is_closing()):
            return
        if self._server.fault == "says close":
            raw = raw.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) if raw.startswith(b"HTTP/") else raw
        async with self._server.pen if self._server.fault == "blocks" else contextlib.nullcontext():
            self._writer.write(raw)
            await self._writer.drain()


def choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": reason}


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def whole(status: int, body: Any, more: str = "") -> bytes:
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    return f"HTTP/1.1 {status} Said\r\n{more}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def checked(raw: bytes) -> tuple[dict[str, Any], str]:
    """The body, and what is wrong with it."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, "no JSON"
    if not isinstance(body, dict):
        return {}, "no object"
    temperature = body.get("temperature", 1)
    rules = {
        "`prompt` is no text of a length that fits": len(body.get("prompt") or "x" * 10_000) < 10_000,
        "`max_tokens` is no number": isinstance(body.get("max_tokens"), int),
        "`temperature` is out of range": isinstance(temperature, int) and temperature >= 0,
        f"there is no model {body.get('model')}": body.get("model") == "m",
    }
    return body, next((rule for rule, holds in rules.items() if not holds), "")


def speak(prompt: str, n_tokens: int, stops: list[str], fault: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield the text of each token, and the finish reason with the last. Characters outside of ASCII are repeated."""
    wide = [character for character in prompt if not character.isascii()]
    drawn = itertools.cycle(wide) if wide else (word + " " for word in words(prompt))
    raw = "".join(itertools.islice(drawn, n_tokens * _TOKEN_BYTES)).encode()[: n_tokens * _TOKEN_BYTES]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, n_said = "", 0
    for place in range(n_tokens):
        token = raw[place * _TOKEN_BYTES : (place + 1) * _TOKEN_BYTES]
        is_last = place + 1 == n_tokens
        text += token.decode(errors="replace") if fault == "half characters" else decoder.decode(token, is_last)
        ends = [text.index(stop) for stop in stops if stop in text]
        if ends:
            yield text[n_said : max(n_said, min(ends))], "stop"
            return
        is_all_said = is_last and fault != "loses its end"
        n_held = 0 if is_all_said or fault == "leaks stop" else max((held(text, stop) for stop in stops), default=0)
        yield text[n_said : max(n_said, len(text) - n_held)], "length" if is_last else None
        n_said = max(n_said, len(text) - n_held)


def held(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of this stop string."""
    return next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)


@contextlib.asynccontextmanager
async def model_server(fault: Fault | None = None) -> AsyncIterator[tuple[ModelServer, asyncio.Server]]:
    script = ModelServer(fault)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    server = await asyncio.start_server(script.serve_one, sock=listener)
    script.port = listener.getsockname()[1]
    try:
        yield script, server
    finally:
        server.close()
        await script.end()


async def context_of(script: ModelServer, config: CheckConfig = SMALL, **fields: Any) -> CheckContext:
    server = await meet(script.target)
    return CheckContext(server=server, pace=await paced(server, config), config=config, **fields)


async def ask(question: Question, fault: Fault | None = None) -> Finding:
    """The finding about a server with this fault, or without any."""
    async with model_server(fault) as (script, _):
        return await question.ask(await context_of(script))
