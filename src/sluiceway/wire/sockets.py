"""What all sockets here have in common: no mark at which they block or drop, and nobody waits for what nobody reads."""

from __future__ import annotations

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
