"""A server in its own process that only delivers: it decodes messages, formats events, writes to sockets.

`python -m sluiceway_lab.load.way_out '{"format_time": "when made", ...}'` prints JSON lines: its port; what it holds
when every token has been made; what it has spent when every event has been written.

It uses the messages, the framers and the connection limits of the product, but has no HTTP, policy, tokenizer or
engine. It does not ask the kernel for unsent bytes, so small events may fill one more segment than in the product.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import msgspec
import uvloop

from sluiceway.config import StreamsConfig
from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_api import Delta, Events, ToApi
from sluiceway.response.budget import Budget
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.held import FormatTime, Spoken, WaitingEvents, framer_of, held
from sluiceway_lab.load.processes import usage
from sluiceway_lab.load.workload import words

_VOCABULARY = 49_152
_NOTSENT_LOWAT = 25
"""TCP_NOTSENT_LOWAT of Linux."""
_PATIENCE_S = 60.0


class WayOutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process does.

    `model` is the name that each event of the OpenAI protocols repeats; it determines their length. With `waits`, no
    token is made while an event waits, so that readers keep up.
    """

    format_time: FormatTime
    spoken: Spoken
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


class WayOut:
    """The process, as its parent sees it. Created by `way_out`."""

    def __init__(self, process: asyncio.subprocess.Process, target: Target) -> None:
        self._process = process
        self.target = target

    async def backlog(self) -> WriteBacklog:
        """Wait until all readers are connected and all tokens are made. Raises `LoadError`."""
        return msgspec.json.decode(await _line(self._process), type=WriteBacklog)

    async def spent(self) -> Spent:
        """Called after `backlog`. Raises `LoadError`."""
        return msgspec.json.decode(await _line(self._process), type=Spent)


@contextlib.asynccontextmanager
async def way_out(question: WayOutConfig) -> AsyncIterator[WayOut]:
    """Run one on a free port of this machine for the length of the block. Raises `LoadError`."""
    command = [sys.executable, "-m", "sluiceway_lab.load.way_out", msgspec.json.encode(question).decode()]
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=pipe)
    try:
        yield WayOut(process, Target("127.0.0.1", msgspec.json.decode(await _line(process), type=int)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None and process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_S)
    except TimeoutError:
        raise LoadError(f"the way out said nothing for {_PATIENCE_S:g} s") from None
    if not line:
        reason = (await process.stderr.read()).decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise LoadError(f"the way out has ended: {reason[-1]}")
    return line


class _ReaderConnection(asyncio.Protocol):
    """The connection of one reader. It writes waiting events while there is room."""

    def __init__(
        self, waiting: WaitingEvents, limits: StreamsConfig, opened: asyncio.Semaphore, changed: asyncio.Event
    ) -> None:
        self._limits = limits
        self._opened = opened
        self._changed = changed
        self._is_full = False
        self._lost = asyncio.Event()
        self._transport: asyncio.Transport
        self.waiting = waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_bytes)
        connection = transport.get_extra_info("socket")
        if sys.platform == "linux":
            connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, self._limits.unsent_bytes)
        self._opened.release()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.pass_on()
        self._changed.set()

    def pass_on(self) -> None:
        while not self._is_full and (data := self.waiting.take()):
            self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()

    async def close(self) -> None:
        """Close after the transport has written everything."""
        self._transport.close()
        await self._lost.wait()


async def answer(question: WayOutConfig, say: Callable[[object], None]) -> None:
    """Do the work in this process. `say` gets the content of each line."""
    budget = Budget(max_bytes=1 << 40, max_events=1 << 40)
    opened, changed, connections = asyncio.Semaphore(0), asyncio.Event(), list[_ReaderConnection]()

    def meet() -> _ReaderConnection:
        waiting = held(question.format_time, framer_of(question.spoken, question.model, question.n_tokens), budget)
        connections.append(_ReaderConnection(waiting, StreamsConfig(), opened, changed))
        return connections[-1]

    server = await asyncio.get_running_loop().create_server(meet, "127.0.0.1", 0)
    async with server:
        say(server.sockets[0].getsockname()[1])
        for _ in range(question.n_readers):
            await opened.acquire()
        messages = list(_messages(question))
        gc.collect()
        before_bytes, before_s = _resident_bytes(), time.process_time()
        await _make(messages, connections, changed, waits=question.waits)
        made_s = time.process_time() - before_s
        gc.collect()
        say(WriteBacklog(_resident_bytes() - before_bytes, sum(one.waiting.n_events for one in connections)))
        before_s = time.process_time()
        await _until_written(connections, changed)
        say(Spent(made_s + time.process_time() - before_s, question.n_readers * question.n_tokens))
        for connection in connections:
            await connection.close()


async def _make(
    messages: Sequence[bytes], connections: Sequence[_ReaderConnection], changed: asyncio.Event, *, waits: bool
) -> None:
    """Take one message per step, as the API process does."""
    decoder: Decoder[ToApi] = Decoder(ToApi)
    for raw in messages:
        message = decoder.decode(raw)
        assert isinstance(message, Events)
        for event in message.events:
            assert isinstance(event, Delta)
            connections[event.rid].waiting.add(event)
        for connection in connections:
            connection.pass_on()
        await asyncio.sleep(0)
        if waits:
            await _until_written(connections, changed)


async def _until_written(connections: Sequence[_ReaderConnection], changed: asyncio.Event) -> None:
    while any(connection.waiting.n_events for connection in connections):
        changed.clear()
        await changed.wait()


def _messages(question: WayOutConfig) -> Sequence[bytes]:
    """Return messages with a token for every reader."""
    drawn, ids = words(f"{question.seed}/way-out"), random.Random(question.seed)
    return [
        encode(
            Events(
                events=[
                    Delta(rid, " " + next(drawn), (ids.randrange(_VOCABULARY),)) for rid in range(question.n_readers)
                ]
            )
        )
        for _ in range(question.n_tokens)
    ]


def _resident_bytes() -> int:
    used = usage(os.getpid())
    if used is None:
        raise LoadError("this system does not say what memory a process has")
    return used.rss_bytes


def _say(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(answer(msgspec.json.decode(sys.argv[1], type=WayOutConfig), _say))
