"""Typed one-way pipes between processes (or threads): an `Outlet` pushes messages, an `Inlet` takes them.

The side nearer to the client binds, the side nearer to the engine connects. So while a process is down, no peer is
connected, and a push fails immediately with `PeerGone`. No message waits in a pipe for a process that was started anew.

Pipes have no high-water mark: a push never blocks and never drops. What can be in a pipe is bounded by admission
(at most `max_running + max_waiting` sequences exist, each with at most its tokens), not by a count of messages.

A message that its receiver cannot decode is dropped and counted. A pipe has one process at each end. But another
process of the same user can open the socket file too. Then ZeroMQ gives each of them every second message, and messages
are lost. So no process may wait for a message without a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.pipes.junk import decode_or_drop
from sluiceway.ipc.pipes.sockets import EVENTS, NOBLOCK, POLLOUT, AsyncReceiver, attach, waiting

T = TypeVar("T", bound=msgspec.Struct)


class Outlet(Generic[T]):
    """Pushes messages without waiting, so that cleanup code may use it."""

    def __init__(self, context: zmq.Context[Any], address: str, *, bind: bool) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
        attach(self._socket, address, bind=bind)

    def push(self, message: T) -> None:
        """Send a message. If no peer is connected, the bound side raises `PeerGone`; the other side keeps it."""
        try:
            self._socket.send(encode(message), NOBLOCK)
        except zmq.Again as error:
            raise PeerGone("the process at the other end is not running") from error

    def has_peer(self) -> bool:
        """True when a peer is connected now (bound side only). A peer that has just started may need a moment."""
        return bool(int(self._socket.get(EVENTS)) & POLLOUT)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket. Messages that were pushed are still sent, for up to `linger_ms`, in the background."""
        self._socket.close(linger=linger_ms)


class Inlet(Generic[T]):
    """Takes messages without waiting, for a loop that polls: put `socket` into a `zmq.Poller`."""

    def __init__(self, context: zmq.Context[Any], address: str, decoder: Decoder[T], *, bind: bool) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.PULL)
        attach(self.socket, address, bind=bind)
        self._decoder = decoder

    def drain(self) -> Iterator[T]:
        """Yield every message that has arrived. What cannot be decoded is dropped: see `ipc.pipes.junk`."""
        for raw in waiting(self.socket):
            message = decode_or_drop(self._decoder, raw)
            if message is not None:
                yield message

    def close(self) -> None:
        self.socket.close(linger=0)


class AsyncInlet(Generic[T]):
    """Takes messages in an asyncio loop: either one task calls `take`, or `listen` is called once."""

    def __init__(self, context: zmq.Context[Any], address: str, decoder: Decoder[T], *, bind: bool) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Socket(context, zmq.PULL)
        attach(self._socket, address, bind=bind)
        self._receiver = AsyncReceiver(self._socket)
        self._decoder = decoder

    async def take(self) -> T:
        """The next message. A message that cannot be decoded is dropped: see `ipc.pipes.junk`."""
        while (message := decode_or_drop(self._decoder, await self._receiver.recv())) is None:
            pass
        return message

    def listen(self, handle: Callable[[T], None], on_fault: Callable[[Exception], None]) -> None:
        """Call `handle` with each message, directly from the loop and without a task, one message in each turn.

        `on_fault` gets what `handle` raises: the next message is handled all the same. A message that cannot be decoded
        is dropped.
        """

        def receive(raw: bytes) -> None:
            message = decode_or_drop(self._decoder, raw)
            if message is not None:
                try:
                    handle(message)
                except Exception as error:
                    on_fault(error)

        self._receiver.listen(receive)

    def close(self) -> None:
        """Close the socket."""
        self._receiver.close()
        self._socket.close(linger=0)
