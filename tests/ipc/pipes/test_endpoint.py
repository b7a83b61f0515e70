"""Pipes carry typed messages in order, never block, and say when nobody is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_engine import Abort, SetFlow, ToEngine
from sluiceway.ipc.pipes.endpoint import AsyncInlet, Inlet, Outlet
from sluiceway.ipc.pipes.junk import dropped_messages
from sluiceway.types import FinishReason, Flow


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def _decoder() -> Decoder[ToEngine]:
    return Decoder(ToEngine)


def _receive(inlet: Inlet[ToEngine], count: int) -> list[ToEngine]:
    got: list[ToEngine] = []
    while len(got) < count:
        assert inlet.socket.poll(5_000), f"only {len(got)} of {count} messages came"
        got += inlet.drain()
    return got


def test_messages_arrive_in_order_when_pushed_over_a_socket_file(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """Ten thousand messages, far over ZeroMQ's default mark of a thousand, arrive whole and in order."""
    address = f"ipc://{tmp_path}/pipe"
    outlet: Outlet[ToEngine] = Outlet(context, address, bind=True)
    inlet = Inlet(context, address, _decoder(), bind=False)
    _wait_for_peer(outlet)
    sent: list[ToEngine] = [Abort(rid, FinishReason.CANCELLED) for rid in range(10_000)]
    for message in sent:
        outlet.push(message)
    assert _receive(inlet, len(sent) + 1)[1:] == sent
    outlet.close()
    inlet.close()


def _wait_for_peer(outlet: Outlet[ToEngine]) -> None:
    for _ in range(1_000):
        try:
            outlet.push(SetFlow((0,), Flow.PAUSE))
            return
        except PeerGone:
            zmq.Poller().poll(5)
    raise AssertionError("nobody connected within five seconds")


def test_a_peer_is_known_when_it_is_connected(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """Exactly then a push succeeds."""
    address = f"ipc://{tmp_path}/pipe"
    outlet: Outlet[ToEngine] = Outlet(context, address, bind=True)
    assert not outlet.has_peer()
    inlet: Inlet[ToEngine] = Inlet(context, address, Decoder(ToEngine), bind=False)
    _wait_for_peer(outlet)
    assert outlet.has_peer()
    outlet.close()
    inlet.close()


def test_push_raises_peer_gone_when_nobody_is_connected(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """A bound outlet has no queue for a process that is not there."""
    outlet: Outlet[ToEngine] = Outlet(context, f"ipc://{tmp_path}/pipe", bind=True)
    with pytest.raises(PeerGone):
        outlet.push(SetFlow((1,), Flow.PAUSE))
    outlet.close()


def test_push_is_kept_when_the_connecting_side_is_early(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """The side that connects may speak before the other side has bound."""
    address = f"ipc://{tmp_path}/pipe"
    outlet: Outlet[ToEngine] = Outlet(context, address, bind=False)
    outlet.push(SetFlow((7,), Flow.PAUSE))
    inlet = Inlet(context, address, _decoder(), bind=True)
    assert _receive(inlet, 1) == [SetFlow((7,), Flow.PAUSE)]
    outlet.close()
    inlet.close()


async def test_take_waits_for_a_message_when_the_loop_is_asyncio(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """The asyncio inlet reads what the plain outlet pushes, between threads too."""
    inlet = AsyncInlet(context, "inproc://pipe", _decoder(), bind=True)
    outlet: Outlet[ToEngine] = Outlet(context, "inproc://pipe", bind=False)
    outlet.push(SetFlow((3,), Flow.PAUSE))
    assert await inlet.take() == SetFlow((3,), Flow.PAUSE)
    outlet.close()
    inlet.close()


JUNK = (b"", b"\xff\xfe\x00", b"\x81\xa4type\xa8stranger", b"\x81\xa4type\xa5pause", b"{}", b"\x00" * 70_000)
"""Nothing, no msgpack, another union's message, one without its fields, text, and much."""


def _send_junk(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """Any process that may open the socket file may write to it, also several frames as one message."""
    stranger: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
    stranger.connect(address)
    for raw in JUNK:
        stranger.send(raw)
    stranger.send_multipart([b"", b"junk"])
    stranger.send(encode(SetFlow((9,), Flow.PAUSE)))
    return stranger


def test_junk_is_dropped_and_counted_when_a_loop_polls(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """The next message is read as ever."""
    inlet = Inlet(context, "inproc://pipe", _decoder(), bind=True)
    before = dropped_messages.count
    stranger = _send_junk(context, "inproc://pipe")
    assert _receive(inlet, 1) == [SetFlow((9,), Flow.PAUSE)]
    assert dropped_messages.count == before + len(JUNK) + 2
    stranger.close(linger=0)
    inlet.close()


async def test_junk_is_dropped_and_counted_when_the_loop_is_asyncio(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """The next message is read as ever."""
    inlet = AsyncInlet(context, "inproc://pipe", _decoder(), bind=True)
    before = dropped_messages.count
    stranger = _send_junk(context, "inproc://pipe")
    assert await inlet.take() == SetFlow((9,), Flow.PAUSE)
    assert dropped_messages.count == before + len(JUNK) + 2
    stranger.close(linger=0)
    inlet.close()
