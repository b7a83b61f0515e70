"""The API process carries out the orders of the supervisor, sends heartbeats, and stops."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog.testing
import zmq

from sluiceway.api import process
from sluiceway.api.process import run_api, serve_api, url_of
from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.api.responses.registry import ResponseRegistry
from sluiceway.config import ModelFiles, ModelKind, ServeConfig
from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_api import Accepted, Delta, EngineIsUp, Events, Finished, ToApi
from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, Role, Stop, ToChild
from sluiceway.ipc.messages.to_supervisor import Drained, Heartbeat, Ready, ToSupervisor
from sluiceway.ipc.messages.to_tokenizer import Cancel, FromApi, Tokenize, ToTokenizer
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlServer
from sluiceway.ipc.pipes.endpoint import Inlet, Outlet
from sluiceway.runtime.listener import bind, listen
from sluiceway.types import FinishReason
from support.asgi_driver import FACTS, MODEL, completion
from support.live_http import LiveClient

CONFIG = ServeConfig(model=ModelFiles(kind=ModelKind.FAKE, path="", name=MODEL), port=0)
PATH = "/v1/completions"
PATIENCE_S = 120.0
"""Longer than any test here takes on a busy machine."""


def listening() -> socket.socket:
    """A listening socket, as the supervisor passes it on."""
    listener = bind(CONFIG.host, CONFIG.port)
    listen(listener)
    return listener


class FakeLinks:
    """The pipes and the supervisor of a process under test, as queues."""

    def __init__(self) -> None:
        self.pushed: asyncio.Queue[ToTokenizer] = asyncio.Queue()
        self.events: asyncio.Queue[ToApi] = asyncio.Queue()
        self.orders: asyncio.Queue[ToChild] = asyncio.Queue()
        self.reports: asyncio.Queue[ToSupervisor] = asyncio.Queue()
        self.pipes = _PipeEnd(self)
        self.control = _ControlEnd(self)

    async def reported(self, kind: type[ToSupervisor]) -> ToSupervisor:
        """The next report of this kind."""
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(report := await self.reports.get(), kind):
                pass
            return report

    async def request(self) -> Tokenize:
        message = await asyncio.wait_for(self.pushed.get(), PATIENCE_S)
        assert isinstance(message, Tokenize)
        return message


class _PipeEnd:
    def __init__(self, ends: FakeLinks) -> None:
        self.push = ends.pushed.put_nowait
        self._events = ends.events
        self._task: asyncio.Task[None] | None = None

    def listen(self, handle: Callable[[ToApi], None], on_fault: Callable[[Exception], None]) -> None:
        async def pump() -> None:
            while True:
                message = await self._events.get()
                try:
                    handle(message)
                except Exception as error:
                    on_fault(error)

        self._task = asyncio.create_task(pump())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def has_peer(self) -> bool:
        return True


class _ControlEnd:
    def __init__(self, ends: FakeLinks) -> None:
        self.report = ends.reports.put_nowait
        self.take = ends.orders.get


@asynccontextmanager
async def running(config: ServeConfig = CONFIG, *, serves: bool = True) -> AsyncIterator[tuple[FakeLinks, LiveClient]]:
    """A process in this loop, with a client. At the end it gets the order to stop, and stops."""
    ends = FakeLinks()
    running_api = asyncio.create_task(run_api(config, ends.pipes, ends.control, listening()))
    ready = await ends.reported(Ready)
    assert isinstance(ready, Ready)
    client = await LiveClient.connect(urlsplit(str(ready.facts["url"])).port or 0)
    if serves:
        ends.events.put_nowait(EngineIsUp(FACTS))
        for role in (Role.TOKENIZER, Role.ENGINE):
            ends.orders.put_nowait(PeerUp(role, 7))
        await status_becomes(client, 200)
    try:
        yield ends, client
        ends.orders.put_nowait(Stop())
        await asyncio.wait_for(running_api, PATIENCE_S)
    finally:
        client.finish()
        running_api.cancel()
        await ends.pipes.close()


async def status_becomes(client: LiveClient, status: int) -> None:
    """Ask for readiness until the status is this one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await client.request("GET", "/health/ready")
            if (await client.read_answer()).status == status:
                return


def answer(request: Tokenize, *texts: str) -> Events:
    (rid,) = request.rids
    deltas = [Delta(rid, text, (1,)) for text in texts]
    end = Finished(rid=rid, reason=FinishReason.STOP, completion_tokens=len(texts))
    return Events(events=[Accepted(rid, 3, 0), *deltas, end])


async def test_it_answers_a_request() -> None:
    """The request goes from the HTTP body to the pipe, and its answer goes back."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion())
        ends.events.put_nowait(answer(await ends.request(), "Hel", "lo"))
        assert (await client.read_answer()).json()["choices"][0]["text"] == "Hello"


async def test_it_answers_while_other_processes_load() -> None:
    """It says that it is not ready."""
    async with running(serves=False) as (ends, client):
        await client.request("GET", "/health/live")
        assert (await client.read_answer()).status == 200
        await status_becomes(client, 503)
        for _ in range(2):
            await ends.reported(Heartbeat)


async def test_open_requests_end_when_the_engine_dies() -> None:
    """Then the process is not ready, and shows no process id of the engine."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion())
        await ends.request()
        ends.orders.put_nowait(PeerDown(Role.ENGINE))
        refused = await client.read_answer()
        assert refused.status == 503 and refused.json()["error"]["code"] == "engine_lost"
        await status_becomes(client, 503)
        await client.request("GET", "/stats")
        assert set((await client.read_answer()).json()["processes"]) == {"api", "tokenizer"}


async def test_open_requests_go_on_when_the_engine_hangs() -> None:
    """The process is not ready meanwhile."""
    async with running() as (ends, client):
        ends.orders.put_nowait(PeerDown(Role.ENGINE, hung=True))
        await status_becomes(client, 503)
        ends.orders.put_nowait(PeerUp(Role.ENGINE, 7))
        await status_becomes(client, 200)


async def test_a_drain_waits_for_open_requests() -> None:
    """New requests are refused. The end is reported after the last answer."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion(stream=True))
        request = await ends.request()
        ends.events.put_nowait(Events(events=[Accepted(request.rids[0], 3, 0)]))
        assert (await client.read_head())[0] == 200
        ends.orders.put_nowait(Drain(30.0))
        ends.events.put_nowait(Events(events=answer(request, "x").events[1:]))
        body = b""
        while chunk := await client.read_chunk():
            body += chunk
        assert body.endswith(b"data: [DONE]\n\n") and b"error" not in body
        await ends.reported(Drained)
        await client.request("POST", PATH, completion())
        assert (await client.read_answer()).json()["error"]["code"] == "draining"


async def test_a_drain_ends_requests_after_its_timeout() -> None:
    """The client gets the reason, and the engine too."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion())
        (rid,) = (await ends.request()).rids
        ends.orders.put_nowait(Drain(0.0))
        assert (await client.read_answer()).json()["error"]["code"] == "draining"
        await ends.reported(Drained)
        assert await ends.pushed.get() == Cancel((rid,), FinishReason.DRAINING)


async def test_a_stopped_reader_does_not_delay_a_drain() -> None:
    """Its last event is written, whether it reads it or not."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion(stream=True))
        (rid,) = (await ends.request()).rids
        ends.events.put_nowait(Events(events=[Accepted(rid, 3, 0)]))
        ends.events.put_nowait(Events(events=[Delta(rid, "x" * 30_000_000, (1,))]))
        await client.read_head()
        ends.orders.put_nowait(Drain(0.0))
        await ends.reported(Drained)


async def test_it_stops_immediately_on_order() -> None:
    """Clients get an error. The process does not wait for them."""
    async with running() as (ends, client):
        await client.request("POST", PATH, completion())
        await ends.request()
        ends.orders.put_nowait(Stop())
        assert (await client.read_answer()).status == 503


async def test_a_fault_at_one_message_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is from the tokenizer or the supervisor, or it is a tick. The fault is logged, and work goes on."""
    with structlog.testing.capture_logs() as lines:
        async with running() as (ends, client):
            with monkeypatch.context() as broken:
                broken.setattr(ResponseRegistry, "wake", fail)
                broken.setattr(Dispatcher, "peer_up", fail)
                ends.events.put_nowait(Events(events=[]))
                ends.orders.put_nowait(PeerUp(Role.ENGINE, 7))
                async with asyncio.timeout(PATIENCE_S):
                    while len(faults(lines)) < 2:  # noqa: ASYNC110 - a log wakes nobody
                        await asyncio.sleep(0)
            await client.request("POST", PATH, completion())
            ends.events.put_nowait(answer(await ends.request(), "Hel", "lo"))
            assert (await client.read_answer()).json()["choices"][0]["text"] == "Hello"
    assert faults(lines) == {"a message from the tokenizer", "an order of the supervisor"}


async def test_a_fault_at_a_roll_call_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequences go on."""
    monkeypatch.setattr(process, "QUIET_S", 0.0)
    monkeypatch.setattr(Dispatcher, "call_roll", fail)
    with structlog.testing.capture_logs() as lines:
        async with running() as (ends, client):
            await client.request("POST", PATH, completion())
            request = await ends.request()
            async with asyncio.timeout(PATIENCE_S):
                while not faults(lines):  # noqa: ASYNC110 - a log wakes nobody
                    await asyncio.sleep(0)
            ends.events.put_nowait(answer(request, "Hello"))
            assert (await client.read_answer()).json()["choices"][0]["text"] == "Hello"
    assert faults(lines) == {"a roll call"}


async def test_a_drain_and_a_stop_are_carried_out_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the server would wait for its timeout."""
    with structlog.testing.capture_logs() as lines:
        async with running() as (ends, _):
            monkeypatch.setattr(Dispatcher, "drain", fail)
            monkeypatch.setattr(Dispatcher, "end_all", fail)
            ends.orders.put_nowait(Drain(0.0))
            await ends.reported(Drained)
    assert faults(lines) == {"a drain", "an order of the supervisor"}


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def faults(lines: Sequence[MutableMapping[str, Any]]) -> set[str]:
    return {line["message"] for line in lines if line["event"] == "a message could not be handled"}


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")])
def test_the_url_can_be_pasted(host: str, url: str) -> None:
    """An IPv6 address is in brackets."""
    assert url_of(host, 80) == url


def test_it_works_with_real_pipes() -> None:
    """The process runs in a thread that has its own loop."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    addresses = Addresses.in_process("api-test")
    supervisor = ControlServer(context, addresses.control)
    thread = threading.Thread(target=serve_api, args=(CONFIG, context, addresses, listening()))
    thread.start()
    try:
        _wait_for_report(supervisor, Ready)
        from_api: Inlet[FromApi] = Inlet(context, addresses.api_to_tokenizer, Decoder(FromApi), bind=False)
        to_api: Outlet[ToApi] = Outlet(context, addresses.tokenizer_to_api, bind=False)
        to_api.push(EngineIsUp(FACTS))
        _wait_for_report(supervisor, Heartbeat)
    finally:
        supervisor.send(Role.API, Stop())
        thread.join(10.0)
    assert not thread.is_alive()
    from_api.close()
    to_api.close()
    supervisor.close()
    context.term()


def _wait_for_report(supervisor: ControlServer, kind: type[ToSupervisor]) -> None:
    for _ in range(100):
        supervisor.socket.poll(100)
        if any(isinstance(report, kind) for _, report in supervisor.drain()):
            return
    raise AssertionError(f"no {kind.__name__} came")
