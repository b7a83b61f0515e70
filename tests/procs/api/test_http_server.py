"""A server that leaves signals alone."""

from __future__ import annotations

import signal

import pytest

from support.asgi_driver import Api
from support.live_http import LiveClient, live_http


async def test_it_serves_until_it_is_told_to_stop() -> None:
    """Signals go where they went before; the socket is closed in the end."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with live_http(Api().app) as port:
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        client = await LiveClient.connect(port)
        await client.request("GET", "/health/live")
        answer = await client.read_answer()
        assert answer.status == 200 and "server" not in answer.headers
    assert await client.read_to_the_end() == b""
    client.finish()
    with pytest.raises(ConnectionRefusedError):
        await LiveClient.connect(port)
