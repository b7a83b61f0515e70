"""The engine process: the loop and the sockets around an `Engine`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any, assert_never

import zmq

from sluiceway.engine.engine import Engine
from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop
from sluiceway.ipc.messages.to_engine import Abort, ToEngine
from sluiceway.ipc.messages.to_supervisor import Heartbeat, Ready
from sluiceway.ipc.messages.to_tokenizer import EngineUp, FromEngine
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlClient
from sluiceway.ipc.pipes.endpoint import Inlet, Outlet
from sluiceway.ipc.pipes.junk import dropped_messages
from sluiceway.runtime.loops import HEARTBEAT_S, LongestGap
from sluiceway.types import EngineFacts, FinishReason


class EngineLoop:
    """Runs the engine: it steps while there is work, and sleeps while there is none, until the order to stop."""

    def __init__(self, context: zmq.Context[Any], addresses: Addresses, engine: Engine, facts: EngineFacts) -> None:
        self._engine = engine
        self._facts = facts
        self._inlet: Inlet[ToEngine] = Inlet(context, addresses.tokenizer_to_engine, Decoder(ToEngine), bind=False)
        self._outlet: Outlet[FromEngine] = Outlet(context, addresses.engine_to_tokenizer, bind=False)
        self._control = ControlClient(context, addresses.control, Role.ENGINE)
        self._pulse_control = ControlClient(context, addresses.control, Role.ENGINE, is_pulse=True)
        self._orphans: list[ToEngine] = []
        self._looked_s: float | None = None
        """When the loop last looked at what arrived; None while it waits for that and does nothing else."""
        self._gaps = LongestGap(time.monotonic())
        self._should_stop = False
        self._has_stopped = threading.Event()

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inlet.socket, zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)
        pulse.start()
        try:
            self._say_hello()
            while not self._should_stop:
                if not self._engine.has_work and not self._orphans:
                    self._looked_s = None
                    poller.poll()
                self._obey()
                for message in self._engine.step(self._receive):
                    self._publish(message)
        finally:
            self._has_stopped.set()
            pulse.join()
            for end in (self._inlet, self._outlet, self._control):
                end.close()

    def _say_hello(self) -> None:
        self._publish(EngineUp(self._facts))
        self._control.report(Ready({"blocks": self._facts.n_blocks, "max_model_len": self._facts.max_model_len}))

    def _publish(self, message: FromEngine) -> None:
        try:
            self._outlet.push(message)
        except PeerGone:
            pass  # only in tests and in `LLM`, whose threads close their ends for good: no reader is left

    def _receive(self) -> Iterator[ToEngine]:
        now_s = time.monotonic()
        if self._looked_s is not None:
            self._gaps.add(round(now_s - self._looked_s, 3), now_s)
        self._looked_s = now_s
        orphans, self._orphans = self._orphans, []
        return itertools.chain(orphans, self._inlet.drain())

    def _beat(self) -> None:
        """Send heartbeats from a thread of its own, so that a long step is not taken for silence.

        A heartbeat says how long the current step has taken. When the whole process is stopped, so is this thread.
        """
        try:
            while not self._has_stopped.wait(HEARTBEAT_S):
                looked_s = self._looked_s
                self._pulse_control.report(
                    Heartbeat(
                        step_s=0.0 if looked_s is None else time.monotonic() - looked_s,
                        longest_gap_s=self._gaps.seconds,
                        n_dropped=dropped_messages.count,
                    )
                )
        finally:
            self._pulse_control.close()

    def _obey(self) -> None:
        for order in self._control.drain():
            match order:
                case PeerDown(Role.TOKENIZER, hung=False):
                    # Without the tokenizer, tokens cannot become text, and clients that leave are not reported.
                    self._orphans += [Abort(rid, FinishReason.DISCONNECTED) for rid in self._engine.live_rids()]
                case PeerUp(Role.TOKENIZER | Role.API):
                    # A process that was started again lacks this. The tokenizer passes it on to the API process.
                    self._publish(EngineUp(self._facts))
                case PeerDown() | PeerUp() | ProcessFigures() | Drain():
                    pass
                case Stop():
                    self._should_stop = True
                case _:
                    assert_never(order)
