"""Pipes carry typed messages in order, never block, and raise an error when no process is connected."""

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


def test_messages_over_a_socket_file_arrive_in_order(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    """Ten thousand messages, more than ZeroMQ's default limit of a thousand for a queue."""
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
    raise AssertionError("no process connected within five seconds")


def test_has_peer_is_true_once_the_other_side_is_connected(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/pipe"
    outlet: Outlet[ToEngine] = Outlet(context, address, bind=True)
    assert not outlet.has_peer()
    inlet: Inlet[ToEngine] = Inlet(context, address, Decoder(ToEngine), bind=False)
    _wait_for_peer(outlet)
    assert outlet.has_peer()
    outlet.close()
    inlet.close()


def test_push_raises_peer_gone_when_no_process_is_connected(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """An outlet that is bound queues no messages for a process that may connect later."""
    outlet: Outlet[ToEngine] = Outlet(context, f"ipc://{tmp_path}/pipe", bind=True)
    with pytest.raises(PeerGone):
        outlet.push(SetFlow((1,), Flow.PAUSE))
    outlet.close()


def test_a_message_that_is_pushed_before_the_other_side_binds_is_kept(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """The side that connects may start first."""
    address = f"ipc://{tmp_path}/pipe"
    outlet: Outlet[ToEngine] = Outlet(context, address, bind=False)
    outlet.push(SetFlow((7,), Flow.PAUSE))
    inlet = Inlet(context, address, _decoder(), bind=True)
    assert _receive(inlet, 1) == [SetFlow((7,), Flow.PAUSE)]
    outlet.close()
    inlet.close()


async def test_asyncio_inlet_takes_messages_of_a_plain_outlet(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    inlet = AsyncInlet(context, "inproc://pipe", _decoder(), bind=True)
    outlet: Outlet[ToEngine] = Outlet(context, "inproc://pipe", bind=False)
    outlet.push(SetFlow((3,), Flow.PAUSE))
    assert await inlet.take() == SetFlow((3,), Flow.PAUSE)
    outlet.close()
    inlet.close()


JUNK = (b"", b"\xff\xfe\x00", b"\x81\xa4type\xa8stranger", b"\x81\xa4type\xa5pause", b"{}", b"\x00" * 70_000)
"""No bytes, no msgpack, a message of another union, a message without its fields, text, and many bytes."""


def _send_junk(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """Send junk, also as a message of several frames, and then a correct message.

    Every process that may open the socket file can do this.
    """
    stranger: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
    stranger.connect(address)
    for raw in JUNK:
        stranger.send(raw)
    stranger.send_multipart([b"", b"junk"])
    stranger.send(encode(SetFlow((9,), Flow.PAUSE)))
    return stranger


def test_plain_inlet_drops_and_counts_junk(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """It reads the next message as usual."""
    inlet = Inlet(context, "inproc://pipe", _decoder(), bind=True)
    before = dropped_messages.count
    stranger = _send_junk(context, "inproc://pipe")
    assert _receive(inlet, 1) == [SetFlow((9,), Flow.PAUSE)]
    assert dropped_messages.count == before + len(JUNK) + 2
    stranger.close(linger=0)
    inlet.close()


async def test_asyncio_inlet_drops_and_counts_junk(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """It reads the next message as usual."""
    inlet = AsyncInlet(context, "inproc://pipe", _decoder(), bind=True)
    before = dropped_messages.count
    stranger = _send_junk(context, "inproc://pipe")
    assert await inlet.take() == SetFlow((9,), Flow.PAUSE)
    assert dropped_messages.count == before + len(JUNK) + 2
    stranger.close(linger=0)
    inlet.close()
