"""The other ends of a loop's pipes, in one process: a test acts as its neighbours and its supervisor."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import zmq

from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_child import Role, Stop, ToChild
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlServer
from sluiceway.ipc.pipes.endpoint import Inlet, Outlet

WAIT_S = 120
"""How long a test waits, for a message or for the end of a loop, before it fails."""

T = TypeVar("T")

_numbers = itertools.count()


class Surroundings:
    """The surroundings of one loop: addresses, the supervisor's end of the control pipe, ends of other pipes."""

    def __init__(self, role: Role) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.addresses = Addresses.in_process(f"test-{next(_numbers)}")
        self._role = role
        self._control = ControlServer(self.context, self.addresses.control)
        self._ends: list[Any] = [self._control]
        self._loop = threading.Thread()

    def outlet(self, address: str, *, bind: bool) -> Outlet[Any]:
        outlet: Outlet[Any] = Outlet(self.context, address, bind=bind)
        self._ends.append(outlet)
        return outlet

    def inlet(self, address: str, union: Any, *, bind: bool) -> Inlet[Any]:
        inlet: Inlet[Any] = Inlet(self.context, address, Decoder(union), bind=bind)
        self._ends.append(inlet)
        return inlet

    def order(self, *orders: ToChild) -> None:
        for order in orders:
            self._control.send(self._role, order)

    def reported(self, kind: type[T]) -> T:
        """The next report of this kind. Other reports before it are dropped."""
        return first(self._control.socket, lambda: (report for _, report in self._control.drain()), kind)

    def start(self, loop: Callable[[], None]) -> None:
        """Run the loop in a thread."""
        self._loop = threading.Thread(target=loop, name=f"{self._role.value} under test", daemon=True)
        self._loop.start()

    def stop(self) -> None:
        """Stop the loop, check that it ends, and close all ends of the pipes."""
        self.order(Stop())
        self._loop.join(WAIT_S)
        assert not self._loop.is_alive(), "the loop did not stop"
        for end in self._ends:
            end.close()
        self.context.destroy(linger=0)


def received(inlet: Inlet[Any], kind: type[T]) -> T:
    """The next message of this kind. Other messages before it are dropped."""
    return first(inlet.socket, inlet.drain, kind)


def first(socket: zmq.Socket[Any], drain: Callable[[], Iterable[object]], kind: type[T]) -> T:
    """The next message of this kind. Messages after it stay in the socket."""
    while True:
        assert socket.poll(WAIT_S * 1000), f"no {kind.__name__} came"
        for message in drain():
            if isinstance(message, kind):
                return message
