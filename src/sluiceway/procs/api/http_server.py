"""uvicorn as a part of a process that has other loops too: our socket, our signals, our log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from sluiceway.procs.api.http_protocol import Buffers, WatchfulProtocol
from sluiceway.procs.api.listener import BACKLOG

_TICK_S = 1.0


class HttpServer(uvicorn.Server):
    """Serves an app on a bound socket. Leaves every signal to the supervisor, which says when to stop."""

    def __init__(
        self, app: ASGIApp, *, keep_alive_s: float, buffers: Buffers, on_started: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[WatchfulProtocol]", functools.partial(WatchfulProtocol, buffers=buffers)),
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """Once a second for the `Date` header, and no more: uvicorn would wake ten times to see whether to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()

    def stop(self) -> None:
        """Begin to leave: no new connection, idle ones are closed, the rest has a second."""
        self.should_exit = True
        self._stopping.set()
