"""What a server of ours holds and has computed, by its own account, looked at so that it feels little of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway_lab.load.raw_connection import RawConnection, keeping
from sluiceway_lab.load.replies import LoadError
from sluiceway_lab.load.scrape import Samples, parse_samples, total
from sluiceway_lab.load.target_server import TargetServer

LIMIT_S = 20.0
_POLL_S = 0.002
"""Whoever looks without a pause keeps the process busy that shall notice a close."""
_RELEASED = "sluiceway_close_to_release_seconds"

Stats = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gauge:
    """On one connection, so that a look takes little. Each `until` raises `LoadError` if it does not come to that."""

    server: TargetServer
    connection: RawConnection

    async def stats(self) -> Stats:
        """The account. The engine answers it between two steps: while it computes, this waits for the step's end."""
        stats: Stats = msgspec.json.decode(await self._get("/stats"))
        return stats

    async def samples(self) -> Samples:
        """The last word of the engine: without waiting for it."""
        return parse_samples((await self._get("/metrics")).decode())

    async def computed(self) -> int:
        """Tokens of all streams since the server's start, those that nobody took with them."""
        engine = (await self.stats())["engine"]
        return int(engine["generated_tokens_total"] + engine["wasted_tokens_total"])

    async def generated(self, stream_id: str) -> int:
        """Tokens that had come as far as the answer, before it was left; 0 where there is no such stream yet."""
        stream = msgspec.json.decode(await self._get(f"/v1/streams/{stream_id}"))
        return int(stream["tokens"]["generated"]) if "tokens" in stream else 0

    async def told(self) -> tuple[float, float]:
        """How many sequences the engine has let go because they were left, and the seconds that all of them took, from
        when the server had noticed."""
        samples = await self.samples()
        return total(samples, f"{_RELEASED}_count"), total(samples, f"{_RELEASED}_sum")

    async def until(self, what: str, is_so: Callable[[Samples], bool]) -> None:
        """By the last word of the engine."""

        async def look() -> bool:
            return is_so(await self.samples())

        await _until(look, what, _POLL_S)

    async def until_generated(self, stream_id: str, n_tokens: int) -> None:
        async def look() -> bool:
            return await self.generated(stream_id) >= n_tokens

        await _until(look, f"{n_tokens} tokens", _POLL_S)

    async def until_released(self, n_others: int = 0) -> None:
        """Whoever asks right after a close is answered right after the release: the question goes the way of the word
        of the close, behind it, and the engine answers between two steps. So this needs no pause, and costs no step."""

        async def look() -> bool:
            return is_released(await self.stats(), n_others)

        await _until(look, "a release", 0.0)

    async def _get(self, path: str) -> bytes:
        await self.connection.send(keeping(self.server.target.request("GET", path)))
        return (await self.connection.read_reply(LIMIT_S)).body


def is_released(stats: Stats, n_others: int) -> bool:
    """Whether nothing lives but the others; without others, whether every block is free or kept for reuse."""
    engine = stats["engine"]
    is_whole = engine["blocks_free"] + engine["blocks_cached"] == engine["blocks_total"]
    return not stats["stale"] and len(stats["live"]) == n_others and (n_others > 0 or is_whole)


async def _until(look: Callable[[], Awaitable[bool]], what: str, pause_s: float) -> None:
    deadline_s = time.perf_counter() + LIMIT_S
    while not await look():
        if time.perf_counter() > deadline_s:
            raise LoadError(f"{LIMIT_S:g} s went by without {what}")
        await asyncio.sleep(pause_s)
