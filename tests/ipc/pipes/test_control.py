"""The control pipe addresses processes by their role. A restarted process takes over the address of its role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sluiceway.ipc.messages.codec import encode
from sluiceway.ipc.messages.to_child import Drain, PeerUp, Role, Stop, ToChild
from sluiceway.ipc.messages.to_supervisor import Drained, Heartbeat, Ready, ToSupervisor
from sluiceway.ipc.pipes.control import AsyncControlClient, ControlClient, ControlServer
from sluiceway.ipc.pipes.junk import dropped_messages

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def _reports(server: ControlServer, count: int) -> list[tuple[Role, ToSupervisor]]:
    got: list[tuple[Role, ToSupervisor]] = []
    while len(got) < count:
        assert server.socket.poll(5_000), f"only {len(got)} of {count} reports came"
        got += server.drain()
    return got


def _orders(client: ControlClient, count: int) -> list[ToChild]:
    got: list[ToChild] = []
    while len(got) < count:
        assert client.socket.poll(5_000), f"only {len(got)} of {count} orders came"
        got += client.drain()
    return got


def test_each_process_gets_only_the_orders_for_its_role(context: Context, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/control"
    server = ControlServer(context, address)
    engine = ControlClient(context, address, Role.ENGINE)
    tokenizer = ControlClient(context, address, Role.TOKENIZER)
    engine.report(Ready({}))
    tokenizer.report(Heartbeat())
    assert sorted(_reports(server, 2)) == [(Role.ENGINE, Ready({})), (Role.TOKENIZER, Heartbeat())]
    server.send(Role.ENGINE, Stop())
    server.send(Role.TOKENIZER, PeerUp(Role.ENGINE))
    assert _orders(engine, 1) == [Stop()]
    assert _orders(tokenizer, 1) == [PeerUp(Role.ENGINE)]
    for end in (server, engine, tokenizer):
        end.close()


def test_an_order_to_a_role_without_a_process_is_dropped(context: Context, tmp_path: Path) -> None:
    server = ControlServer(context, f"ipc://{tmp_path}/control")
    server.send(Role.API, Stop())
    server.close()


def test_a_restarted_process_takes_over_the_address_of_its_role(context: Context, tmp_path: Path) -> None:
    """It gets the orders even while the connection of the first process is still open."""
    address = f"ipc://{tmp_path}/control"
    server = ControlServer(context, address)
    first = ControlClient(context, address, Role.ENGINE)
    first.report(Heartbeat())
    _reports(server, 1)
    second = ControlClient(context, address, Role.ENGINE)
    second.report(Heartbeat())
    _reports(server, 1)
    server.send(Role.ENGINE, Stop())
    assert _orders(second, 1) == [Stop()]
    for end in (server, first, second):
        end.close()


async def test_async_client_reports_without_waiting_and_awaits_orders(context: Context) -> None:
    server = ControlServer(context, "inproc://control")
    client = AsyncControlClient(context, "inproc://control", Role.API)
    client.report(Drained())
    assert _reports(server, 1) == [(Role.API, Drained())]
    server.send(Role.API, Drain(2.0))
    assert await client.take() == Drain(2.0)
    client.close()
    server.close()


def test_supervisor_drops_junk_and_reads_the_next_report(context: Context, tmp_path: Path) -> None:
    """From senders with and without a role: unreadable bytes, no bytes, and too many frames."""
    address = f"ipc://{tmp_path}/control"
    server = ControlServer(context, address)
    before = dropped_messages.count
    for identity in (b"", b"no role", b"\xff\xfe", b"engine/pulse"):
        stranger: zmq.Socket[bytes] = zmq.Socket(context, zmq.DEALER)
        if identity:
            stranger.set(zmq.IDENTITY, identity)
        stranger.connect(address)
        for frames in ([b"junk"], [b""], [b"a", b"b"]):
            stranger.send_multipart(frames)
        stranger.close(linger=5_000)
    engine = ControlClient(context, address, Role.ENGINE)
    engine.report(Heartbeat())
    reports: list[tuple[Role, ToSupervisor]] = []
    while dropped_messages.count < before + 12 or not reports:
        assert server.socket.poll(5_000), f"{dropped_messages.count - before} of 12 were dropped, and {reports} came"
        reports += server.drain()
    assert reports == [(Role.ENGINE, Heartbeat())]
    engine.close()
    server.close()


async def test_processes_drop_junk_and_read_the_next_order(context: Context) -> None:
    """A process without asyncio and one with it."""
    server: zmq.Socket[bytes] = zmq.Socket(context, zmq.ROUTER)
    server.bind("inproc://control")
    engine = ControlClient(context, "inproc://control", Role.ENGINE)
    api = AsyncControlClient(context, "inproc://control", Role.API)
    for raw in (b"junk", b"", encode(Stop())):
        server.send_multipart([b"engine", raw])
        server.send_multipart([b"api", raw])
    assert _orders(engine, 1) == [Stop()]
    assert await api.take() == Stop()
    engine.close()
    api.close()
    server.close(linger=0)


def test_a_pulse_reports_for_its_process_and_gets_no_orders(context: Context, tmp_path: Path) -> None:
    """It is a second socket of the process, used by another thread."""
    address = f"ipc://{tmp_path}/control"
    server = ControlServer(context, address)
    engine = ControlClient(context, address, Role.ENGINE)
    pulse = ControlClient(context, address, Role.ENGINE, is_pulse=True)
    pulse.report(Heartbeat(step_s=1.5))
    engine.report(Ready({}))
    assert sorted(_reports(server, 2), key=repr) == [
        (Role.ENGINE, Heartbeat(step_s=1.5)),
        (Role.ENGINE, Ready({})),
    ]
    server.send(Role.ENGINE, Stop())
    assert _orders(engine, 1) == [Stop()]
    for end in (server, engine, pulse):
        end.close()
