"""Options that all sockets share: they never block or drop messages, and closing does not wait for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import zmq

# As plain numbers: those of pyzmq are flags, and their arithmetic in Python costs more than the calls that use them.
NOBLOCK = int(zmq.NOBLOCK)
EVENTS = int(zmq.EVENTS)
POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)


def attach(socket: zmq.Socket[Any], address: str, *, bind: bool) -> None:
    """Set the options, which apply to later connections only; then bind or connect."""
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    if bind:
        socket.bind(address)
    else:
        socket.connect(address)


def waiting(socket: zmq.Socket[bytes]) -> Iterator[bytes]:
    """Every message that is here now."""
    while has_message(socket):
        yield socket.recv(NOBLOCK)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """True when a message can be received now. Asking costs less than catching the exception of pyzmq."""
    return bool(int(socket.get(EVENTS)) & POLLIN)


class AsyncReceiver:
    """Receives from a socket in an asyncio loop, for one task.

    The asyncio sockets of pyzmq need several futures and turns of the loop for a message, which costs much more than
    reading it. Here the loop only watches the descriptor by which ZeroMQ says that something has happened.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self.is_watching = False
        """True while the loop watches the descriptor: from the first wait until no task receives any more."""
        self._something: asyncio.Future[None] | None = None

    async def recv(self) -> bytes:
        """Return the next message. If it is here already, other tasks run first: a full socket must not stop them."""
        if has_message(self.socket):
            await asyncio.sleep(0)
        while not has_message(self.socket):
            await self._wait()
        return self.socket.recv(NOBLOCK)

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """Call `receive` with each message from now on, one in a turn of the loop, so that others have their turns."""
        socket, loop = self.socket, self._loop

        def take_one() -> None:
            # ZeroMQ signals its descriptor once, also for many messages. So this asks until there is none.
            if self.is_watching and int(socket.get(EVENTS)) & POLLIN:
                loop.call_soon(take_one)
                receive(socket.recv(NOBLOCK))

        loop.add_reader(socket, take_one)
        self.is_watching = True
        loop.call_soon(take_one)

    def poke(self) -> None:
        """Wake the receiver. Call this after a send on the same socket, which may hide the notice of a new message.

        http://api.zeromq.org/master:zmq-getsockopt explains it for `ZMQ_FD`.
        """
        if self._something is not None and not self._something.done():
            self._something.set_result(None)

    def close(self) -> None:
        """Stop watching. Call this before the socket is closed. Idempotent."""
        if self.is_watching:
            self.is_watching = False
            self._loop.remove_reader(self.socket)

    async def _wait(self) -> None:
        self._something = self._loop.create_future()
        if not self.is_watching:
            self._loop.add_reader(self.socket, self._happened)
            self.is_watching = True
        await self._something

    def _happened(self) -> None:
        if self._something is None or self._something.done():
            self.close()  # no task receives now, and the descriptor stays readable until one does
        else:
            self._something.set_result(None)
