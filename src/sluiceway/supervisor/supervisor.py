"""The parent of the server's processes. It starts, watches, drains and stops them, as a `Supervision` decides.

It holds the listening socket, which the API process inherits: while that process restarts, connections wait in the
kernel. SIGTERM and SIGINT ask it to stop. When it has stopped the others, it ignores these signals until it exits, so
that a late signal does not change the exit code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_never

import msgspec
import structlog
import zmq

from sluiceway.config import ServeConfig
from sluiceway.errors import ConfigError
from sluiceway.ipc.messages.to_child import Role
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlServer
from sluiceway.ipc.pipes.junk import dropped_messages
from sluiceway.obs.log import configure_log
from sluiceway.runtime.listener import listen
from sluiceway.runtime.loops import LongestGap
from sluiceway.runtime.signals import ignore_signals
from sluiceway.supervisor.child import CONFIG_FILE
from sluiceway.supervisor.stand_in import StandIn
from sluiceway.supervisor.supervision import (
    CloseListener,
    Effect,
    Kill,
    Log,
    Send,
    SetStandIn,
    Spawn,
    Supervision,
)

_TICK_MS = 100

_CHILD_ENVIRONMENT = {
    # How long a compute thread spins while it waits for the others. By default it spins for milliseconds: if another
    # program needs a core, each of the hundreds of waits in a step takes a time slice, and a token takes ten times as
    # long. On an idle machine this value costs nothing. (GNU OpenMP manual, GOMP_SPINCOUNT.)
    "GOMP_SPINCOUNT": "1000",
}
"""Set for every child, unless the user has set it."""

_MAX_SOCKET_PATH_BYTES = 100
"""Unix socket paths hold 107 bytes on Linux and 103 on macOS."""


def serve(config: ServeConfig, listener: socket.socket) -> int:
    """Run a server on a bound socket until a signal (SIGTERM, SIGINT) stops it. Returns the exit code.

    Raises `ConfigError` if the address was taken meanwhile. Leaves SIGTERM and SIGINT ignored.
    """
    with _signals_as_socket() as signals:
        configure_log(config.log_level, config.log_format, process="supervisor")
        listen(listener)
        with _runtime_directory() as directory:
            (directory / CONFIG_FILE).write_bytes(msgspec.msgpack.encode(config))
            return _Supervisor(config, directory, listener).run(signals)


@contextlib.contextmanager
def _runtime_directory() -> Iterator[Path]:
    """Make a private directory (mode 0700) for the socket files, and remove it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-"))
    try:
        longest = max(len(os.fsencode(address)) for address in _socket_files(directory))
        if longest > _MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                "TMPDIR", f"the path {tempfile.gettempdir()} is too long for socket files; set a shorter one"
            )
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _socket_files(directory: Path) -> Iterator[str]:
    addresses = Addresses.in_directory(str(directory))
    for name in Addresses.__slots__:
        yield getattr(addresses, name).removeprefix("ipc://")


class _Supervisor:
    """Carries out the effects of a `Supervision` and reports facts to it, in one loop."""

    def __init__(self, config: ServeConfig, directory: Path, listener: socket.socket) -> None:
        self._listener = listener
        self._stand_in = StandIn(listener)
        self._model_name = config.model.name
        self._directory = directory
        self._context: zmq.Context[Any] = zmq.Context()
        self._control = ControlServer(self._context, Addresses.in_directory(str(directory)).control)
        self._children: dict[Role, subprocess.Popen[bytes]] = {}
        self._log = structlog.get_logger("supervisor")
        self._supervision = Supervision(
            drain_timeout_s=config.drain_timeout_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            restart_hung_after_s=config.restart_hung_after_s,
        )
        self._gaps = LongestGap(time.monotonic())
        self._figures = (0.0, 0)

    def run(self, signals: socket.socket) -> int:
        poller = zmq.Poller()
        poller.register(self._control.socket, zmq.POLLIN)
        poller.register(signals, zmq.POLLIN)
        self._log.info("starting", model=self._model_name)
        self._supervision.started(time.monotonic())
        try:
            while self._supervision.exit_code is None:
                self._act()
                began_s = time.monotonic()
                poller.poll(_TICK_MS)
                self._measure(began_s)
                self._observe(signals)
            self._act()
        finally:
            self._kill_all()
            self._stand_in.stop()
            self._control.close()
            self._context.term()
        return self._supervision.exit_code or 0

    def _measure(self, began_s: float) -> None:
        """Measure by how much a wait took longer than asked for: then the supervisor did not run."""
        now_s = time.monotonic()
        self._gaps.add(round(max(0.0, now_s - began_s - _TICK_MS / 1000), 3), now_s)
        figures = (self._gaps.seconds, dropped_messages.count)
        if figures != self._figures:
            self._figures = figures
            self._supervision.measured("supervisor", *figures)

    def _observe(self, signals: socket.socket) -> None:
        """Collect the facts. Reports come before exits, since the last report of a dead process says why it died."""
        now_s = time.monotonic()
        for role, report in self._control.drain():
            self._supervision.reported(role, report, now_s)
        for number in _take(signals):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._supervision.asked_to_stop(now_s)
        for role, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[role]
                self._supervision.exited(role, code, now_s)
        self._supervision.tick(now_s)

    def _act(self) -> None:
        for effect in self._supervision.effects():
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(role):
                self._spawn(role)
            case Send(role, message):
                self._control.send(role, message)
            case Kill(role):
                if role in self._children:
                    self._children[role].kill()
            case SetStandIn(is_on):
                if is_on:
                    self._stand_in.start()
                else:
                    self._stand_in.stop()
                self._log.info("answering for the API process", is_on=is_on)
            case CloseListener():
                self._listener.close()
            case Log(event, fields, is_error):
                (self._log.error if is_error else self._log.info)(event, **fields)
            case _:
                assert_never(effect)

    def _spawn(self, role: Role) -> None:
        """Start a process. If it cannot be started (no memory, no process left), it counts as dead."""
        listener = self._listener.fileno()
        command = [sys.executable, "-m", "sluiceway.supervisor.child", role.value, str(self._directory)]
        command += [str(os.getpid()), str(listener)]
        # The child inherits the mask: these signals must not end it before it ignores them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal must reach the supervisor only, which drains
                env=_CHILD_ENVIRONMENT | os.environ,
                pass_fds=(listener,) if role is Role.API else (),
            )
        except OSError as error:
            self._log.error("process cannot be started", role=role.value, why=error.strerror)
            self._supervision.exited(role, 1, time.monotonic())
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._children[role] = child
        self._supervision.spawned(role, child.pid)

    def _kill_all(self) -> None:
        """Leave no process behind, whatever has happened."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()


@contextlib.contextmanager
def _signals_as_socket() -> Iterator[socket.socket]:
    """Yield a socket that receives the number of each signal as one byte, which wakes the poll."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    try:
        yield reader
    finally:
        ignore_signals((signal.SIGTERM, signal.SIGINT))  # and do not restore the old handlers: this process ends now
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(old_fd)
        reader.close()
        writer.close()


def _take(signals: socket.socket) -> bytes:
    try:
        return signals.recv(4096)
    except BlockingIOError:
        return b""
