"""The parent of a server's processes: starts them, watches them, drains and stops them. Carries out a `Supervision`."""

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
from sluiceway.messages.to_child import Role
from sluiceway.obs.log import configure_log
from sluiceway.procs.addresses import Addresses
from sluiceway.procs.child import CONFIG_FILE
from sluiceway.procs.supervision import Announce, Effect, Kill, Spawn, Supervision, Tell
from sluiceway.wire.control import ControlServer

_TICK_MS = 100

_CHILD_ENVIRONMENT = {
    # How long a compute thread that waits for the others keeps its core. By default for milliseconds: where something
    # else wants a core, each of the step's hundreds of waits then takes a time slice, and a token takes ten times as
    # long. With this, nothing is lost where nobody does. (GNU OpenMP manual, GOMP_SPINCOUNT.)
    "GOMP_SPINCOUNT": "1000",
}
"""Set for every child, unless the user has set it."""

_MAX_SOCKET_PATH_BYTES = 100
"""Unix socket paths hold 107 bytes on Linux and 103 on macOS."""


def serve(config: ServeConfig) -> int:
    """Run a server until it is told to stop (SIGTERM, SIGINT). Returns the exit code: 0 after an orderly end."""
    configure_log(config.log_level, config.log_format, process="supervisor")
    with _runtime_directory() as directory:
        (directory / CONFIG_FILE).write_bytes(msgspec.msgpack.encode(config))
        return _Supervisor(config, directory).run()


@contextlib.contextmanager
def _runtime_directory() -> Iterator[Path]:
    """A private directory (mode 0700) for the socket files; removed at the end."""
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
    def __init__(self, config: ServeConfig, directory: Path) -> None:
        self._model_name = config.model.name
        self._directory = directory
        self._context: zmq.Context[Any] = zmq.Context()
        self._control = ControlServer(self._context, Addresses.in_directory(str(directory)).control)
        self._children: dict[Role, subprocess.Popen[bytes]] = {}
        self._log = structlog.get_logger("supervisor")
        self._mind = Supervision(drain_timeout_s=config.drain_timeout_s, heartbeat_timeout_s=config.heartbeat_timeout_s)

    def run(self) -> int:
        with _signals_as_socket() as signals:
            poller = zmq.Poller()
            poller.register(self._control.socket, zmq.POLLIN)
            poller.register(signals, zmq.POLLIN)
            self._log.info("starting", model=self._model_name)
            self._mind.started()
            try:
                while self._mind.exit_code is None:
                    self._act()
                    poller.poll(_TICK_MS)
                    self._observe(signals)
                self._act()
            finally:
                self._kill_all()
                self._control.close()
                self._context.term()
        return self._mind.exit_code or 0

    def _observe(self, signals: socket.socket) -> None:
        """Reports before exits: the last words of a process that died say why."""
        now_s = time.monotonic()
        for role, report in self._control.drain():
            self._mind.reported(role, report, now_s)
        for number in _take(signals):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._mind.asked_to_stop(now_s)
        for role, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[role]
                self._mind.exited(role, code, now_s)
        self._mind.tick(now_s)

    def _act(self) -> None:
        for effect in self._mind.effects():
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(role):
                self._children[role] = child = self._spawn(role)
                self._mind.spawned(role, child.pid)
            case Tell(role, message):
                self._control.send(role, message)
            case Kill(role):
                if role in self._children:
                    self._children[role].kill()
            case Announce(event, fields, is_error):
                (self._log.error if is_error else self._log.info)(event, **fields)
            case _:
                assert_never(effect)

    def _spawn(self, role: Role) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sluiceway.procs.child", role.value, str(self._directory), str(os.getpid())]
        # A group of its own: Ctrl-C in the terminal is for the supervisor, which drains.
        environment = _CHILD_ENVIRONMENT | os.environ
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, env=environment)

    def _kill_all(self) -> None:
        """Whatever happens here, no process is left behind."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()


@contextlib.contextmanager
def _signals_as_socket() -> Iterator[socket.socket]:
    """A socket that has one byte, the number, for each signal; so that the poll below wakes at once."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def _take(signals: socket.socket) -> bytes:
    try:
        return signals.recv(4096)
    except BlockingIOError:
        return b""
