"""The control pipe between the supervisor and the processes that it started: one ROUTER, one DEALER a process.

A process is addressed by its role. A restarted process takes over the address of the process that died. A thread
of a process that only sends heartbeats has a socket of its own, and an address that is never written to (`is_pulse`).
A message that cannot be decoded is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import zmq

from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_child import Role, ToChild
from sluiceway.ipc.messages.to_supervisor import ToSupervisor
from sluiceway.ipc.pipes.junk import decode_or_drop, dropped_messages
from sluiceway.ipc.pipes.sockets import NOBLOCK, AsyncReceiver, attach, has_message, waiting

_AT_MOST = 1000
_PULSE = b"/pulse"
_ROLES = {role.value.encode(): role for role in Role}


class ControlServer:
    """The supervisor's end; binds."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.ROUTER)
        self.socket.set(zmq.ROUTER_HANDOVER, 1)
        attach(self.socket, address, bind=True)
        self._decoder: Decoder[ToSupervisor] = Decoder(ToSupervisor)

    def send(self, role: Role, message: ToChild) -> None:
        """Send an order to one process; it is dropped if that process is not connected."""
        self.socket.send_multipart([role.value.encode(), encode(message)], NOBLOCK)

    def drain(self) -> Iterator[tuple[Role, ToSupervisor]]:
        """Yield reports that have arrived, with their senders; at most `_AT_MOST`, so that other work goes on."""
        for _ in range(_AT_MOST):
            if not has_message(self.socket):
                return
            identity, *frames = self.socket.recv_multipart(NOBLOCK)
            role = _ROLES.get(identity.removesuffix(_PULSE))
            if role is None or len(frames) != 1:
                dropped_messages.add(b"".join(frames), "it is no report of a process of this server")
                continue
            report = decode_or_drop(self._decoder, frames[0])
            if report is not None:
                yield role, report

    def close(self) -> None:
        self.socket.close(linger=0)


def _connect(socket: zmq.Socket[Any], address: str, role: Role, suffix: bytes = b"") -> None:
    socket.set(zmq.IDENTITY, role.value.encode() + suffix)
    attach(socket, address, bind=False)


class ControlClient:
    """The end of a process that polls: put `socket` into a `zmq.Poller`."""

    def __init__(self, context: zmq.Context[Any], address: str, role: Role, *, is_pulse: bool = False) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.DEALER)
        _connect(self.socket, address, role, _PULSE if is_pulse else b"")
        self._decoder: Decoder[ToChild] = Decoder(ToChild)

    def report(self, message: ToSupervisor) -> None:
        self.socket.send(encode(message), NOBLOCK)

    def drain(self) -> Iterator[ToChild]:
        """Yield every order that has arrived."""
        for raw in waiting(self.socket):
            order = decode_or_drop(self._decoder, raw)
            if order is not None:
                yield order

    def close(self, linger_ms: int = 200) -> None:
        """Close the socket. The last report is still sent, for up to `linger_ms`."""
        self.socket.close(linger=linger_ms)


class AsyncControlClient:
    """The end of a process with an asyncio loop. Make it in that loop; one task takes the orders."""

    def __init__(self, context: zmq.Context[Any], address: str, role: Role) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.DEALER)
        _connect(self._socket, address, role)
        self._receiver = AsyncReceiver(self._socket)
        self._decoder: Decoder[ToChild] = Decoder(ToChild)

    def report(self, message: ToSupervisor) -> None:
        """Send a report without waiting: the socket has no high-water mark."""
        self._socket.send(encode(message), NOBLOCK)
        self._receiver.poke()

    async def take(self) -> ToChild:
        """The next order."""
        while (order := decode_or_drop(self._decoder, await self._receiver.recv())) is None:
            pass
        return order

    def close(self, linger_ms: int = 200) -> None:
        """Close the socket. The last report is still sent, for up to `linger_ms`."""
        self._receiver.close()
        self._socket.close(linger=linger_ms)
