"""The engine process: the loop and the sockets around an `Engine`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, assert_never

import zmq

from sluiceway.engine.engine import Engine
from sluiceway.errors import PeerGone
from sluiceway.messages.codec import Decoder
from sluiceway.messages.to_child import Drain, PeerDown, PeerUp, Role, Stop
from sluiceway.messages.to_engine import Abort, ToEngine
from sluiceway.messages.to_supervisor import Heartbeat, Ready
from sluiceway.messages.to_tokenizer import EngineUp, FromEngine
from sluiceway.procs.addresses import Addresses
from sluiceway.procs.loops import HEARTBEAT_S
from sluiceway.types import EngineFacts, FinishReason
from sluiceway.wire.control import ControlClient
from sluiceway.wire.endpoint import Inlet, Outlet


class EngineLoop:
    """Steps while there is work, sleeps while there is none, until told to stop."""

    def __init__(self, context: zmq.Context[Any], addresses: Addresses, engine: Engine, facts: EngineFacts) -> None:
        self._engine = engine
        self._facts = facts
        self._inlet: Inlet[ToEngine] = Inlet(context, addresses.tokenizer_to_engine, Decoder(ToEngine), bind=False)
        self._outlet: Outlet[FromEngine] = Outlet(context, addresses.engine_to_tokenizer, bind=False)
        self._control = ControlClient(context, addresses.control, Role.ENGINE)
        self._orphans: list[ToEngine] = []
        self._next_beat_s = 0.0
        self._is_told_to_stop = False

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inlet.socket, zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        self._say_hello()
        try:
            while not self._is_told_to_stop:
                self._beat()
                if not self._engine.has_work and not self._orphans:
                    poller.poll(int(HEARTBEAT_S * 1000))
                self._obey()
                for message in self._engine.step(self._receive):
                    self._publish(message)
        finally:
            for end in (self._inlet, self._outlet, self._control):
                end.close()

    def _say_hello(self) -> None:
        self._publish(EngineUp(self._facts))
        self._control.report(Ready({"blocks": self._facts.n_blocks, "max_model_len": self._facts.max_model_len}))

    def _publish(self, message: FromEngine) -> None:
        try:
            self._outlet.push(message)
        except PeerGone:
            pass  # between threads, where a closed end is gone for good: nobody is left to read this

    def _receive(self) -> Iterator[ToEngine]:
        orphans, self._orphans = self._orphans, []
        return itertools.chain(orphans, self._inlet.drain())

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._control.report(Heartbeat())
            self._next_beat_s = now_s + HEARTBEAT_S

    def _obey(self) -> None:
        for order in self._control.drain():
            match order:
                case PeerDown(Role.TOKENIZER, hung=False):
                    # Nobody can turn tokens into text any more, nor tell us of a client that left.
                    self._orphans += [Abort(rid, FinishReason.DISCONNECTED) for rid in self._engine.live_rids()]
                case PeerUp(Role.TOKENIZER | Role.API):
                    # Whoever starts again has not heard it; the tokenizer passes it on to the API process.
                    self._publish(EngineUp(self._facts))
                case PeerDown() | PeerUp() | Drain():
                    pass
                case Stop():
                    self._is_told_to_stop = True
                case _:
                    assert_never(order)
