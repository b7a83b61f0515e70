"""What all sockets here have in common: no mark at which they block or drop, and nobody waits for what nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import zmq


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
    while True:
        try:
            raw = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield raw


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
        """The next message. Others have their turn before it, so a socket that is never empty holds up nobody."""
        await asyncio.sleep(0)
        while True:
            try:
                return self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                await self._wait()

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
