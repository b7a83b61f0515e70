"""The control pipe addresses processes by role, and a restarted process takes the address over."""

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


def test_orders_reach_their_role_when_several_are_connected(context: Context, tmp_path: Path) -> None:
    """Each process gets what was sent to its role, and nothing else."""
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


def test_send_is_harmless_when_the_process_is_not_there(context: Context, tmp_path: Path) -> None:
    """Nobody is told; nothing raises."""
    server = ControlServer(context, f"ipc://{tmp_path}/control")
    server.send(Role.API, Stop())
    server.close()


def test_address_is_taken_over_when_a_process_starts_again(context: Context, tmp_path: Path) -> None:
    """The second process of a role gets the orders, though the first one's connection is still open."""
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


async def test_async_client_reports_and_takes_when_in_a_loop(context: Context) -> None:
    """Reports leave at once; orders are awaited."""
    server = ControlServer(context, "inproc://control")
    client = AsyncControlClient(context, "inproc://control", Role.API)
    client.report(Drained())
    assert _reports(server, 1) == [(Role.API, Drained())]
    server.send(Role.API, Drain(2.0))
    assert await client.take() == Drain(2.0)
    client.close()
    server.close()


def test_junk_is_dropped_when_a_stranger_sends_it_to_the_supervisor(context: Context, tmp_path: Path) -> None:
    """Of no role, of a role but unreadable, of too many frames or none; the next report is read as ever."""
    address = f"ipc://{tmp_path}/control"
    server = ControlServer(context, address)
    before = dropped_messages.count
    for identity in (b"", b"nobody", b"\xff\xfe", b"engine/pulse"):
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


async def test_junk_is_dropped_when_a_process_gets_it(context: Context) -> None:
    """In both kinds of loop."""
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
    """A thread beside the loop has a socket of its own."""
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
