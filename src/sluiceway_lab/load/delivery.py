"""A server in its own process that only delivers: it formats events and writes them to its readers.

`python -m sluiceway_lab.load.delivery '{"format_time": "when made", ...}'` prints JSON lines: its port; what it holds
when every token has been made; what it has spent when every event has been written.

It formats the same events as the product, either when a token is made, as the product does, or when there is room to
write. It has no HTTP, policy, tokenizer or engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeVar

import msgspec
import uvloop

from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.processes import usage
from sluiceway_lab.load.workload import words

FormatTime = Literal["when made", "when written"]
SpokenProtocol = Literal["chat", "completions", "native"]

WRITE_BYTES = 8192
"""A write has whole events, and ends after this many bytes, as in the product."""
_VOCABULARY = 49_152
_PATIENCE_S = 60.0
_OPENAI_HEAD = (
    '"id":"cmpl-0123456789abcdef0123456789abcdef","object":"{kind}","created":1800000000,"model":{model},'
    '"choices":[{{"index":0,{field}'
)
_OPENAI_END = ',"logprobs":null,"finish_reason":null}],"usage":null}\n\n'


class DeliveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process does.

    `model` is the name that each event of the OpenAI protocols repeats; it determines their length. With `waits`, no
    token is made while an event waits, so that readers keep up. Otherwise nothing is written until all are made.
    """

    format_time: FormatTime
    spoken: SpokenProtocol
    model: str
    n_readers: int
    n_tokens: int
    waits: bool = False
    seed: int = 0


class WriteBacklog(msgspec.Struct, frozen=True):
    """What is held when every token has been made: the growth of the whole process since the first token."""

    grown_bytes: int
    n_events: int


class Spent(msgspec.Struct, frozen=True):
    """Processor time from the first token until every event was written."""

    cpu_s: float
    n_events: int


Report = TypeVar("Report", WriteBacklog, Spent)


class MadeToken(msgspec.Struct, frozen=True):
    """A new token, as the API process of the product gets it in a message."""

    reader: int
    text: str
    token_ids: tuple[int, ...]


class Delivery:
    """The process, as its parent sees it. Created by `delivery`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.target = Target("127.0.0.1", port)

    async def report(self, kind: type[Report]) -> Report:
        """Wait for the next report: first a `WriteBacklog`, after all readers have connected; then `Spent`.

        Raises `LoadError`.
        """
        return msgspec.json.decode(await _line(self._process), type=kind)


@contextlib.asynccontextmanager
async def delivery(config: DeliveryConfig) -> AsyncIterator[Delivery]:
    """Run one on a free port of this machine for the length of the block. Raises `LoadError`."""
    command = [sys.executable, "-m", "sluiceway_lab.load.delivery", msgspec.json.encode(config).decode()]
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=pipe)
    try:
        yield Delivery(process, msgspec.json.decode(await _line(process), type=int))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None and process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_S)
    except TimeoutError:
        raise LoadError(f"the delivering process said nothing for {_PATIENCE_S:g} s") from None
    if not line:
        reason = (await process.stderr.read()).decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise LoadError(f"the delivering process has ended: {reason[-1]}")
    return line


class EventFormat:
    """Formats the events of one stream as the product does. It encodes only once what all of them share."""

    def __init__(self, spoken: SpokenProtocol, model: str) -> None:
        self._is_native, self._n_formatted = spoken == "native", 0
        kind, field, end = {
            "chat": ("chat.completion.chunk", '"delta":{"content":', "}"),
            "completions": ("text_completion", '"text":', ""),
            "native": ("", "", ""),
        }[spoken]
        name = msgspec.json.encode(model).decode()
        self._head = ("data: {" + _OPENAI_HEAD.format(kind=kind, model=name, field=field)).encode()
        self._end = (end + _OPENAI_END).encode()

    def event(self, token: MadeToken) -> bytes:
        text = msgspec.json.encode(token.text)
        self._n_formatted += 1
        if not self._is_native:
            return self._head + text + self._end
        place = self._n_formatted - 1
        return b'event: token\ndata: {"index":%d,"id":%d,"text":%b}\n\n' % (place, token.token_ids[0], text)


class WaitingEvents:
    """The events of one reader that are not written yet."""

    def __init__(self, config: DeliveryConfig) -> None:
        self._format = EventFormat(config.spoken, config.model)
        self._is_early = config.format_time == "when made"
        self._waiting: deque[MadeToken | bytes] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, token: MadeToken) -> None:
        self._waiting.append(self._format.event(token) if self._is_early else token)

    def take(self) -> bytes:
        """Return whole events for one write; nothing if none waits."""
        events: list[bytes] = []
        n_bytes = 0
        while self._waiting and n_bytes < WRITE_BYTES:
            one = self._waiting.popleft()
            events.append(one if isinstance(one, bytes) else self._format.event(one))
            n_bytes += len(events[-1])
        return events[0] if len(events) == 1 else b"".join(events)

    async def write(self, writer: asyncio.StreamWriter) -> None:
        """Write all, and wait for room as often as needed."""
        while data := self.take():
            writer.write(data)
            if writer.transport.get_write_buffer_size():
                await writer.drain()


async def answer(config: DeliveryConfig, say: Callable[[object], None]) -> None:
    """Do the work in this process. `say` gets the content of each line."""
    opened: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: opened.put_nowait(writer), "127.0.0.1", 0)
    async with server:
        say(server.sockets[0].getsockname()[1])
        readers = [(WaitingEvents(config), await opened.get()) for _ in range(config.n_readers)]
        decoder, messages = msgspec.msgpack.Decoder(list[MadeToken]), list(_messages(config))
        gc.collect()
        before_bytes, before_s = _resident_bytes(), time.process_time()
        for message in messages:
            for token in decoder.decode(message):
                readers[token.reader][0].add(token)
            if config.waits:
                for waiting, writer in readers:
                    await waiting.write(writer)
        made_s = time.process_time() - before_s
        gc.collect()
        say(WriteBacklog(_resident_bytes() - before_bytes, sum(len(waiting) for waiting, _ in readers)))
        before_s = time.process_time()
        await asyncio.gather(*(waiting.write(writer) for waiting, writer in readers))
        say(Spent(made_s + time.process_time() - before_s, config.n_readers * config.n_tokens))
        for _, writer in readers:
            writer.close()
            await writer.wait_closed()


def _messages(config: DeliveryConfig) -> list[bytes]:
    """Return messages with a token for every reader, one for each step."""
    drawn, ids = words(f"{config.seed}/way-out"), random.Random(config.seed)
    steps = (
        [MadeToken(reader, " " + next(drawn), (ids.randrange(_VOCABULARY),)) for reader in range(config.n_readers)]
        for _ in range(config.n_tokens)
    )
    return [msgspec.msgpack.encode(step) for step in steps]


def _resident_bytes() -> int:
    used = usage(os.getpid())
    if used is None:
        raise LoadError("this system does not say what memory a process has")
    return used.rss_bytes


def _say(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(answer(msgspec.json.decode(sys.argv[1], type=DeliveryConfig), _say))
