"""What all sockets here have in common: no mark at which they block or drop, and nobody waits for what nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import zmq

# As plain numbers: pyzmq's are flags, whose arithmetic is Python and costs more than the calls that it is for.
NOBLOCK = int(zmq.NOBLOCK)
EVENTS = int(zmq.EVENTS)
POLLIN = int(zmq.POLLIN)
POLLOUT = int(zmq.POLLOUT)


def attach(socket: zmq.Socket[Any], address: str, *, bind: bool) -> None:
    """Set the options, which count for connections made after them; then bind or connect."""
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
    """Whether one can be received now. To ask costs less than pyzmq's exception that says no."""
    return bool(int(socket.get(EVENTS)) & POLLIN)


class AsyncReceiver:
    """Receives from a socket in an asyncio loop, for one task.

    pyzmq's own asyncio sockets make several futures and turns of the loop out of a message, at a few times the cost of
    reading it. Here the loop watches the descriptor with which ZeroMQ says that something has happened, and that is it.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self.is_watching = False
        """Whether the loop watches the descriptor: from the first wait on, as long as somebody receives."""
        self._something: asyncio.Future[None] | None = None

    async def recv(self) -> bytes:
        """The next message. Others have their turn before one that is here already: a full socket holds up nobody."""
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
        """To be called after a send on the same socket, which may take notice of a message in the receiver's place.

        http://api.zeromq.org/master:zmq-getsockopt explains it for `ZMQ_FD`.
        """
        if self._something is not None and not self._something.done():
            self._something.set_result(None)

    def close(self) -> None:
        """Watch no more; before the socket is closed. Idempotent."""
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
            self.close()  # nobody receives now: the descriptor stays readable until somebody does
        else:
            self._something.set_result(None)
