"""Asks one of our servers what it holds and has computed, in a way that disturbs it little."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway_lab.load.client import Connection, dial, keeping, until
from sluiceway_lab.load.target_server import Samples, TargetServer, parse_samples, total

LIMIT_S = 20.0
_POLL_S = 0.002
"""A pause, so that the process that must notice a close is not busy with our requests."""
_RELEASED = "sluiceway_close_to_release_seconds"

Stats = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gauge:
    """Asks on one connection that stays open. Each `until` raises `LoadError` at the limit."""

    server: TargetServer
    connection: Connection

    async def stats(self) -> Stats:
        """Return `/stats`. The engine answers between two steps, so this waits for the end of a step."""
        stats: Stats = msgspec.json.decode(await self._get("/stats"))
        return stats

    async def samples(self) -> Samples:
        """Return the metrics. They show the engine's last report, without waiting for it."""
        return parse_samples((await self._get("/metrics")).decode())

    async def computed(self) -> int:
        """Return the tokens of all streams since the server's start, wasted ones included."""
        engine = (await self.stats())["engine"]
        return int(engine["generated_tokens_total"] + engine["wasted_tokens_total"])

    async def generated(self, stream_id: str) -> int:
        """Return the tokens of a stream that reached the response before its reader left; 0 without such a stream."""
        stream = msgspec.json.decode(await self._get(f"/v1/streams/{stream_id}"))
        return int(stream["tokens"]["generated"]) if "tokens" in stream else 0

    async def released(self) -> tuple[float, float]:
        """Return how many sequences were cancelled because their clients left, and their total time until release.

        The time runs from when the server noticed.
        """
        samples = await self.samples()
        return total(samples, f"{_RELEASED}_count"), total(samples, f"{_RELEASED}_sum")

    async def until(self, what: str, is_so: Callable[[Samples], bool]) -> None:
        """Wait for a condition on the metrics."""

        async def look() -> bool:
            return is_so(await self.samples())

        await until(look, what, limit_s=LIMIT_S, pause_s=_POLL_S)

    async def until_generated(self, stream_id: str, n_tokens: int) -> None:
        async def look() -> bool:
            return await self.generated(stream_id) >= n_tokens

        await until(look, f"{n_tokens} tokens", limit_s=LIMIT_S, pause_s=_POLL_S)

    async def until_released(self, n_others: int = 0) -> None:
        """Wait until everything is released.

        The question follows the cancellation on the same path, and the engine answers it between two steps. So it is
        answered right after the release, needs no pause, and costs no step.
        """

        async def look() -> bool:
            return is_released(await self.stats(), n_others)

        await until(look, "a release", limit_s=LIMIT_S, pause_s=0.0)

    async def _get(self, path: str) -> bytes:
        self.connection.send(keeping(self.server.target.request("GET", path)))
        return (await self.connection.read_reply(LIMIT_S)).body


@contextlib.asynccontextmanager
async def gauging(server: TargetServer) -> AsyncIterator[Gauge]:
    """Connect a gauge for the length of the block."""
    async with dial(server.target) as connection:
        yield Gauge(server, connection)


async def tokens_of(server: TargetServer, stream_id: str) -> tuple[int, int]:
    """Return how many tokens of a stream are generated, and how many were written; zeros without such a stream."""
    stream = await server.json(f"/v1/streams/{stream_id}")
    tokens = stream.get("tokens", {"generated": 0, "delivered": 0})
    return int(tokens["generated"]), int(tokens["delivered"])


def is_released(stats: Stats, n_others: int) -> bool:
    """True if only `n_others` sequences live; without others, also all blocks must be free or cached."""
    engine = stats["engine"]
    is_whole = engine["blocks_free"] + engine["blocks_cached"] == engine["blocks_total"]
    return not stats["stale"] and len(stats["live"]) == n_others and (n_others > 0 or is_whole)
