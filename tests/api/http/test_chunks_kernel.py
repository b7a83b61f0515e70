"""The unsent bytes in the kernel, for a reader that has stopped, and for one that reads again."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sluiceway.api.http import chunks as kernel_queue
from sluiceway.api.http.chunks import KernelQueue

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels cannot be asked")

LIMIT_BYTES = 4096
EVENT = b"x" * 200
TIMEOUT_S = 120.0


class WatchedConnection:
    """A watched queue, the transport that fills it, and the reader at the other end."""

    def __init__(self, transport: asyncio.Transport, reader: socket.socket, max_bytes: int) -> None:
        self.transport = transport
        self.reader = reader
        self.sent = asyncio.Event()
        self.queue = KernelQueue(transport, max_bytes, self.sent.set)

    def fill(self) -> int:
        """Write events until it is full or has a megabyte. Returns their bytes."""
        n_bytes = 0
        while not self.queue.is_full and n_bytes < 1 << 20:
            self.transport.write(EVENT)
            self.queue.look()
            n_bytes += len(EVENT)
        return n_bytes


@asynccontextmanager
async def line(max_bytes: int = LIMIT_BYTES) -> AsyncIterator[WatchedConnection]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as reader:
        reader.connect(listener.getsockname())
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=listener.accept()[0])
        try:
            yield WatchedConnection(transport, reader, max_bytes)
        finally:
            transport.abort()


async def test_it_is_full_when_a_reader_has_stopped() -> None:
    """The reader has most of the bytes, and little more than the limit is unsent."""
    async with line() as one:
        n_bytes = one.fill()
        assert one.queue.is_full
        assert LIMIT_BYTES < one.queue.unsent_bytes < 2 * LIMIT_BYTES
        assert n_bytes < 1 << 20


async def test_it_calls_back_when_it_is_no_longer_full() -> None:
    """The reader may take any time."""
    async with line() as one:
        n_bytes = one.fill()
        await asyncio.sleep(0)
        assert not one.sent.is_set()
        one.reader.settimeout(TIMEOUT_S)
        while n_bytes:
            n_bytes -= len(await asyncio.to_thread(one.reader.recv, n_bytes))
        await asyncio.wait_for(one.sent.wait(), TIMEOUT_S)
        assert (one.queue.is_full, one.queue.unsent_bytes) == (False, 0)


async def test_a_connection_that_has_ended_holds_nothing() -> None:
    """A writer that waits for room is woken, and finds the connection closed."""
    async with line() as one:
        one.fill()
        one.transport.abort()
        await asyncio.wait_for(one.sent.wait(), TIMEOUT_S)
        assert (one.queue.is_full, one.queue.unsent_bytes) == (False, 0)


async def test_without_a_limit_it_is_never_full() -> None:
    """The kernel is not asked."""
    async with line(0) as one:
        assert one.fill() >= 1 << 20
        assert (one.queue.is_full, one.queue.unsent_bytes) == (False, 0)


async def test_it_is_never_full_when_the_kernel_refuses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems that call themselves Linux do."""
    monkeypatch.setattr(kernel_queue, "_SIOCOUTQNSD", 0x89F9)
    async with line() as one:
        assert one.fill() >= 1 << 20
        assert (one.queue.is_full, one.queue.unsent_bytes) == (False, 0)
