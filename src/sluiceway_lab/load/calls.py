"""Requests on connections of their own: what arrives is noted with its time, and looked at when all is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.replies import LoadError, Read, Recording, Reply, parse_reply

LIMIT_S = 600.0
"""A call that takes longer has failed."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is. `root` is the path before `/v1`."""

    host: str
    port: int
    is_tls: bool = False
    root: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None, *, flag: str = "url") -> Target:
        """`url` is the server's root, with or without `/v1`. Raises `ConfigError` that names `flag`."""
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

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """A whole request; the end of its connection is the end of the answer."""
        raw = b"" if body is None else msgspec.json.encode(body)
        lines = [f"{method} {self.root}{path} HTTP/1.1", f"Host: {self._authority}", "Connection: close"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(raw)}"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode() + raw


class Call(asyncio.Protocol):
    """One request under way. `open` it, then wait for its `end`, or `leave`."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s = time.perf_counter()
        self._ended_s = 0.0
        self._reads: list[Read] = []

    @classmethod
    async def open(cls, target: Target, request: bytes) -> Call:
        """Raises `LoadError` where nobody listens."""
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
        """Whether the connection is closed, by whichever side."""
        return self._over.done()

    async def end(self, limit_s: float = LIMIT_S) -> Recording:
        """All that came, once the server has closed. Raises `LoadError`, and leaves, if that takes too long."""
        try:
            async with asyncio.timeout(limit_s):
                await self._over
        except TimeoutError:
            raise LoadError(f"the answer has not ended after {limit_s:g} s") from None
        finally:
            self.leave()
        return Recording(self._started_s, self._reads, self._ended_s)

    def leave(self) -> None:
        """Close at once, whatever is still to come."""
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls.

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
    """One request from its connection to its end."""
    return await (await Call.open(target, request)).end(limit_s)


async def get(target: Target, path: str, limit_s: float = 10.0) -> Reply:
    """A small answer, whole. Raises `LoadError`."""
    reply = parse_reply((await record(target, target.request("GET", path), limit_s)).reads)
    if not reply.is_whole:
        raise LoadError(f"{target.url}{path} broke off its answer")
    return reply
