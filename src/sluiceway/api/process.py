"""The API process: the loops and sockets around a `Dispatcher` and its application."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any, assert_never

import structlog
import uvloop
import zmq
from structlog.typing import FilteringBoundLogger

from sluiceway.api.app import build_app
from sluiceway.api.context import AppContext
from sluiceway.api.http.protocol import SEND_TIMEOUT_S, Buffers
from sluiceway.api.http.request import BodyLimits, Intake, worker_pool
from sluiceway.api.http.server import HttpServer
from sluiceway.api.responses.defaults import StreamDefaults, policy_of
from sluiceway.api.responses.dispatcher import QUIET_S, Dispatcher
from sluiceway.api.responses.links import Control, Pipes
from sluiceway.api.responses.registry import TICK_S, ResponseRegistry
from sluiceway.config import ServeConfig, StreamsConfig
from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_api import ToApi
from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop
from sluiceway.ipc.messages.to_supervisor import Drained, Ready
from sluiceway.ipc.messages.to_tokenizer import ToTokenizer
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import AsyncControlClient
from sluiceway.ipc.pipes.endpoint import AsyncInlet, Outlet
from sluiceway.obs.log import log_fault
from sluiceway.obs.metrics import Metrics
from sluiceway.refusals import DRAINING
from sluiceway.runtime.listener import allow_connections, open_files
from sluiceway.runtime.loops import beat, run_until_first
from sluiceway.types import FinishReason

_OWN_FILES = 64
"""About how many file descriptors a process has open besides its connections."""
_BETWEEN_LINES_S = 10.0
_LAST_WORDS_S = 1.0
"""How long the last error event of a stream may take to be sent when the drain timeout is over."""


_INTRODUCTIONS_S = 0.5
_INTRODUCTIONS_POLL_S = 0.005


def serve_api(config: ServeConfig, context: zmq.Context[Any], addresses: Addresses, listener: socket.socket) -> None:
    """Serve on a listening socket, which other processes may share, until the order to stop."""
    allow_connections()
    uvloop.run(_serve(config, context, addresses, listener))


async def _serve(config: ServeConfig, context: zmq.Context[Any], addresses: Addresses, listener: socket.socket) -> None:
    pipes = _ZmqPipes(context, addresses)
    control = AsyncControlClient(context, addresses.control, Role.API)
    try:
        await run_api(config, pipes, control, listener)
    finally:
        pipes.close()
        control.close()


class _ZmqPipes:
    """The pipes to the tokenizer and back."""

    def __init__(self, context: zmq.Context[Any], addresses: Addresses) -> None:
        self._out: Outlet[ToTokenizer] = Outlet(context, addresses.api_to_tokenizer, bind=True)
        self._in: AsyncInlet[ToApi] = AsyncInlet(context, addresses.tokenizer_to_api, Decoder(ToApi), bind=True)
        self.push = self._out.push
        self.has_peer = self._out.has_peer
        self.listen = self._in.listen

    def close(self) -> None:
        self._out.close()
        self._in.close()


async def run_api(config: ServeConfig, pipes: Pipes, control: Control, listener: socket.socket) -> None:
    """Run the process in the current loop until `Stop` arrives. Raises the error of a task that fails."""
    metrics, log = Metrics(), structlog.get_logger("api").bind()  # bound once, not with every line
    control.report(Ready({"url": url_of(config.host, _port_of(listener))}))
    n_wanted_files = config.max_running + config.max_waiting + _OWN_FILES
    if open_files() < n_wanted_files:
        log.warning("few files may be open", limit=open_files(), wanted=n_wanted_files, hint="raise it: ulimit -n")
    processes = {Role.API.value: os.getpid()}
    dispatcher = Dispatcher(
        push=pipes.push,
        has_peer=pipes.has_peer,
        next_rid=itertools.count(time.monotonic_ns() // 1000).__next__,  # rids of earlier API processes are less
        clock=time.monotonic,
        metrics=metrics,
        log=log,
        max_sequences=config.max_running + config.max_waiting,
        streams=config.streams,
    )
    worker = worker_pool(config.model.name, config.max_body_bytes)
    limits = BodyLimits(config.max_body_bytes)
    context = AppContext(
        dispatcher=dispatcher,
        metrics=metrics,
        log=log,
        intake=Intake(config.model.name, limits, worker, lambda: dispatcher.prompt_room, log),
        defaults=StreamDefaults(config.streams),
        now_s=time.time,
        new_id=functools.partial(token_hex, 16),
        processes=processes,
    )
    server = HttpServer(
        build_app(config, context),
        keep_alive_s=config.keep_alive_s,
        buffers=buffers_of(config.streams),
        on_turned_away=_tell_turned_away(metrics, log),
    )
    pipes.listen(dispatcher.receive, lambda error: _log_fault("a message from the tokenizer", error))
    try:
        await run_until_first(
            _serve_soon(server, listener, dispatcher),
            _keep_time(dispatcher.registry),
            _call_roll(dispatcher),
            _obey(control, dispatcher, metrics, server, processes),
            beat(control, functools.partial(metrics.process_measured, Role.API.value)),
        )
    finally:
        await worker.close()


async def _serve_soon(server: HttpServer, listener: socket.socket, dispatcher: Dispatcher) -> None:
    """Accept connections, but wait first for news of processes that serve already.

    So a process that was started again serves the connections that waited for it, and does not refuse them.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_INTRODUCTIONS_S):
            while dispatcher.refusal is not None:  # noqa: ASYNC110 - ZeroMQ does not report that a pipe has connected
                await asyncio.sleep(_INTRODUCTIONS_POLL_S)
    await server.serve([listener])


def _tell_turned_away(metrics: Metrics, log: FilteringBoundLogger) -> Callable[[str], None]:
    """Counts connections that are turned away. It logs the first one, and then one line every few seconds."""
    next_line_s = -math.inf

    def tell(why: str) -> None:
        nonlocal next_line_s
        metrics.connections_turned_away.value += 1
        if time.monotonic() >= next_line_s:
            next_line_s = time.monotonic() + _BETWEEN_LINES_S
            log.warning(
                "connections turned away", why=why, total=metrics.connections_turned_away.value, limit=open_files()
            )

    return tell


def buffers_of(streams: StreamsConfig) -> Buffers:
    """How long to wait for a silent client: the timeout of the policy, or a minute if it has none."""
    return Buffers(
        write_bytes=streams.write_bytes,
        unsent_bytes=streams.unsent_bytes,
        send_timeout_s=policy_of(streams).stall_timeout_s or SEND_TIMEOUT_S,
    )


def _port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def url_of(host: str, port: int) -> str:
    """The URL of the server for a client on this machine."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _keep_time(registry: ResponseRegistry) -> None:
    """Tick while any response has a timer. An idle process does not wake."""
    timed = asyncio.Event()
    while True:
        timed.clear()
        registry.timed.wait(timed.set)
        await timed.wait()
        await asyncio.sleep(TICK_S)
        with _serving_on("the passing of time"):
            registry.tick()


async def _call_roll(dispatcher: Dispatcher) -> None:
    """Look for lost messages while other processes have sequences. An idle process does not wake."""
    needed = asyncio.Event()
    while True:
        needed.clear()
        dispatcher.has_sequences.wait(needed.set)
        await needed.wait()
        await asyncio.sleep(QUIET_S)
        with _serving_on("a roll call"):
            dispatcher.call_roll()


async def _obey(
    control: Control, dispatcher: Dispatcher, metrics: Metrics, server: HttpServer, processes: dict[str, int]
) -> None:
    """Carry out messages of the supervisor. Never returns: after `Stop` the server ends, and with it the process."""
    async with asyncio.TaskGroup() as drains:
        while True:
            order = await control.take()
            with _serving_on("an order of the supervisor"):
                match order:
                    case PeerUp(role, pid):
                        processes[role.value] = pid
                        dispatcher.peer_up(role)
                    case PeerDown(role, hung):
                        if not hung:
                            processes.pop(role.value, None)
                        dispatcher.peer_down(role, hung=hung)
                    case ProcessFigures(process, longest_gap_s, n_dropped):
                        metrics.process_measured(process, longest_gap_s, n_dropped)
                    case Drain(timeout_s):
                        drains.create_task(_drain(control, dispatcher, timeout_s))
                    case Stop():
                        server.stop()  # first: whatever goes wrong in the rest, the process leaves
                        dispatcher.drain()
                        dispatcher.end_all(FinishReason.DRAINING, DRAINING)
                    case _:
                        assert_never(order)


async def _drain(control: Control, dispatcher: Dispatcher, timeout_s: float) -> None:
    """Wait for open requests to finish, end the rest when the time is over, and report."""
    with _serving_on("a drain"):
        dispatcher.drain()
    await _wait_until_none_is_open(dispatcher, timeout_s)
    with _serving_on("a drain"):
        dispatcher.end_all(FinishReason.DRAINING, DRAINING)
    await _wait_until_none_is_open(dispatcher, _LAST_WORDS_S)
    control.report(Drained())


@contextlib.contextmanager
def _serving_on(what: str) -> Iterator[None]:
    """Log a fault in the handling of one message. It must not end the process, which holds all streams."""
    try:
        yield
    except Exception as error:
        _log_fault(what, error)


def _log_fault(what: str, error: Exception) -> None:
    log_fault(structlog.get_logger("api"), "a message could not be handled", error, message=what)


async def _wait_until_none_is_open(dispatcher: Dispatcher, timeout_s: float) -> None:
    empty = asyncio.Event()
    dispatcher.registry.empty.wait(empty.set)
    try:
        async with asyncio.timeout(timeout_s):
            await empty.wait()
    except TimeoutError:
        pass  # the caller ends what is left
