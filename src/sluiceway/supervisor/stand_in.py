"""Answers connections while no API process does: `StandIn`, which runs in a thread of the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from sluiceway.refusals import API_UNAVAILABLE

_REQUEST_S = 2.0
"""The time that a connection has to send the head of its request, and then to read the answer."""

_MAX_CONNECTIONS = 256
"""Further connections are closed without an answer."""

_ACCEPT_PAUSE_S = 1.0
"""The pause after `accept` has failed for lack of files or memory. The connection stays in the queue of the kernel."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StandIn:
    """Answers every request on a listening socket with 503, in a thread, between `start` and `stop`.

    The API process shares the socket. If both accept connections for a moment, each answers those that it got.
    """

    def __init__(self, listener: socket.socket, *, accept_pause_s: float = _ACCEPT_PAUSE_S) -> None:
        self._listener = listener
        self._accept_pause_s = accept_pause_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start accepting connections. Idempotent."""
        if self._loop is None:
            self._loop, self._stopping = asyncio.new_event_loop(), asyncio.Event()
            listener = self._listener.dup()  # the server below closes it
            serving = _serve(listener, self._stopping, self._accept_pause_s)
            thread = threading.Thread(target=_run, args=(self._loop, serving), name="stand-in", daemon=True)
            thread.start()

    def stop(self) -> None:
        """Stop accepting connections. Those already accepted still get the answer. Idempotent."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has failed and is closed
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._loop = None


def _run(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(serving)
    finally:
        loop.close()


async def _serve(listener: socket.socket, stopping: asyncio.Event, accept_pause_s: float) -> None:
    """Answer connections until `stopping` is set.

    asyncio's own server is not used, because it leaks connections that it accepts at the moment when it is closed.
    """
    loop, answer = asyncio.get_running_loop(), _answer()
    open_now: set[asyncio.Task[None]] = set()

    def accept() -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # usually the API process was quicker, or the client has gone
            if error.errno in _EXHAUSTED:  # the socket stays readable, so trying again now would never end
                loop.remove_reader(listener)
                loop.call_later(accept_pause_s, watch)
            return
        connection.setblocking(False)
        if len(open_now) >= _MAX_CONNECTIONS:
            connection.close()
            return
        task = loop.create_task(_refuse(connection, answer))
        open_now.add(task)
        task.add_done_callback(open_now.discard)

    def watch() -> None:
        if not stopping.is_set():
            loop.add_reader(listener, accept)

    with listener:
        listener.setblocking(False)
        watch()
        await stopping.wait()
        loop.remove_reader(listener)
    while open_now:
        await asyncio.wait(open_now)


async def _refuse(connection: socket.socket, answer: bytes) -> None:
    with connection, contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(sock=connection)
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_S):
                await reader.readuntil(b"\r\n\r\n")
        # Answer an incomplete request too. The kernel resets a connection that is closed while it holds unread bytes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_S):
                writer.write(answer)
                writer.write_eof()
                while await reader.read(65_536):
                    pass
        writer.close()


def _answer() -> bytes:
    from sluiceway.protocols.common.errors import error_body  # imported late, since it takes memory and time

    body = error_body(API_UNAVAILABLE)
    assert API_UNAVAILABLE.retry_after_s is not None
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"retry-after: {math.ceil(API_UNAVAILABLE.retry_after_s)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
