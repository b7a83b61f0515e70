"""uvicorn as a part of a process that has other loops too: our socket, our signals, our log.

Connections are accepted here, and not by the loop: where no more files can be opened, uvloop takes connections and
closes them without a word, and asyncio takes none. Here the last few files are kept for saying 503, and each
connection that cannot be served is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from sluiceway.api.http.protocol import Buffers, ParsingTurns, WatchfulProtocol
from sluiceway.runtime.listener import BACKLOG, open_files

_TICK_S = 1.0

_ACCEPTED_AT_ONCE = 64
_PAUSE_S = 0.05
"""How long no connection is accepted when no file descriptor is left. Connections wait in the kernel meanwhile."""
_FILES_FOR_REFUSALS = 12
_FILES_FOR_OTHERS = 4
"""How many of the last file descriptors stay free. The ones before them are for connections that get a 503."""


_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class HttpServer(uvicorn.Server):
    """Serves an application on a bound socket. It handles no signals: the supervisor says when to stop."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keep_alive_s: float,
        buffers: Buffers,
        on_started: Callable[[], None] = lambda: None,
        on_turned_away: Callable[[str], None] = lambda why: None,
        max_files: int | None = None,
    ) -> None:
        """Call `on_turned_away` with the reason for each connection that is not served.

        The reasons: the process has opened `max_files` files (None: the system's limit), or the system has no room.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(
                    "type[WatchfulProtocol]",
                    functools.partial(WatchfulProtocol, buffers=buffers, turns=ParsingTurns()),
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # the edge of the app logs what goes wrong, and the protocol answers it
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=max(1, round(keep_alive_s)),
                timeout_graceful_shutdown=1,
            )
        )
        self._on_started = on_started
        self._stopping = asyncio.Event()
        self._on_turned_away = on_turned_away
        self._max_files = max_files or open_files()
        self._is_crowded = False
        """True when the last connection was turned away."""
        self._beginnings: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or ():
            listener.setblocking(False)
            listener.listen(BACKLOG)
            self._accept_from(listener)
        self._on_started()

    def _accept_from(self, listener: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._is_crowded and not self._has_file_left(listener):
                self._pause(listener)
                return
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # of a client that has left again: https://man7.org/linux/man-pages/man2/accept.2.html
                self._on_turned_away(errno.errorcode[error.errno])
                self._pause(listener)
                return
            self._begin(connection)

    def _pause(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        loop.call_later(_PAUSE_S, self._accept_from, listener)

    def _has_file_left(self, listener: socket.socket) -> bool:
        """True when a connection may be accepted: its descriptor is the lowest number that is free."""
        try:
            number = os.dup(listener.fileno())
        except OSError:
            return False
        os.close(number)
        return self._max_files - number > _FILES_FOR_OTHERS

    def _begin(self, connection: socket.socket) -> None:
        n_files_left = self._max_files - connection.fileno()
        self._is_crowded = is_full = n_files_left <= _FILES_FOR_OTHERS + _FILES_FOR_REFUSALS
        if is_full:
            self._on_turned_away("EMFILE")
        if n_files_left <= _FILES_FOR_OTHERS:
            connection.close()
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._connect(connection, is_full=is_full))
        self._beginnings.add(task)
        task.add_done_callback(self._beginnings.discard)

    async def _connect(self, connection: socket.socket, *, is_full: bool) -> None:
        def new_protocol() -> asyncio.Protocol:
            protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            if is_full and isinstance(protocol, WatchfulProtocol):
                protocol.is_turned_away = True
            return protocol

        try:
            await asyncio.get_running_loop().connect_accepted_socket(new_protocol, connection)
        except OSError:
            connection.close()  # it was reset meanwhile

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            asyncio.get_running_loop().remove_reader(listener.fileno())
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Update the `Date` header once a second. uvicorn would wake ten times a second to see whether to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()

    def stop(self) -> None:
        """Begin to stop: accept no connection, close idle ones, and give the others a second."""
        self.should_exit = True
        self._stopping.set()
