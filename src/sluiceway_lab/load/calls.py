"""Sends requests, each on its own connection, and records what arrives with its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.replies import LoadError, Read, Recording, Reply, parse_reply

LIMIT_S = 600.0
"""A call that takes longer fails."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server. `root` is the path before `/v1`."""

    host: str
    port: int
    is_tls: bool = False
    root: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None, *, flag: str = "url") -> Target:
        """Parse the address of a server, with or without `/v1`. Raises `ConfigError` that names `flag`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as fault:
            raise ConfigError(flag, f"{url!r} is no address: {fault}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(flag, f"must look like http://127.0.0.1:8000, not {url!r}")
        is_tls = parts.scheme == "https"
        root = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, root, api_key)

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self._authority}{self.root}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the bytes of a request. The server closes the connection after its answer (see `keeping`)."""
        raw = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        fields = {"Host": self._authority, "Connection": "close", **(headers or {})}
        if raw is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        if self.api_key:
            fields["Authorization"] = f"Bearer {self.api_key}"
        http = h11.Connection(h11.CLIENT)
        parts: list[h11.Event] = [h11.Request(method=method, target=self.root + path, headers=list(fields.items()))]
        if raw:
            parts.append(h11.Data(data=raw))
        return b"".join(http.send(part) or b"" for part in (*parts, h11.EndOfMessage()))


class Call(asyncio.Protocol):
    """A request in progress. Create it with `open`, then wait for its `end`, or `leave`."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s = time.perf_counter()
        self._ended_s = 0.0
        self._reads: list[Read] = []

    @classmethod
    async def open(cls, target: Target, request: bytes) -> Call:
        """Connect and send the request. Raises `LoadError` if no server listens."""
        call = cls(request)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: call, target.host, target.port, ssl=target.is_tls or None)
        except OSError as fault:
            raise LoadError(f"no answer from {target.url}: {fault.strerror or fault}") from fault
        return call

    @property
    def n_reads(self) -> int:
        return len(self._reads)

    @property
    def is_over(self) -> bool:
        """True when either side has closed the connection."""
        return self._over.done()

    async def end(self, limit_s: float = LIMIT_S) -> Recording:
        """Wait until the server has closed, and return what came. Raises `LoadError` after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._over
        except TimeoutError:
            raise LoadError(f"the answer has not ended after {limit_s:g} s") from None
        finally:
            self.leave()
        return Recording(self._started_s, self._reads, self._ended_s)

    def leave(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    # The methods of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._reads.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended_s = time.perf_counter()
        if not self._over.done():
            self._over.set_result(None)


async def record(target: Target, request: bytes, limit_s: float = LIMIT_S) -> Recording:
    """Send a request on a new connection, and record the whole answer."""
    return await (await Call.open(target, request)).end(limit_s)


async def get(target: Target, path: str, limit_s: float = 10.0) -> Reply:
    """Get a small answer. Raises `LoadError` if it is incomplete."""
    reply = parse_reply((await record(target, target.request("GET", path), limit_s)).reads)
    if not reply.is_whole:
        raise LoadError(f"{target.url}{path} broke off its answer")
    return reply
