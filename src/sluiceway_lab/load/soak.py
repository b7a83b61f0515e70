"""Sends many short requests, and measures the server's memory meanwhile. A leak shows at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from sluiceway_lab.load.record import Run
from sluiceway_lab.load.scenarios import memory_figures
from sluiceway_lab.load.streams import attempt, read_all
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

SOAK_PARTS = 10
_TOKENS = 4
_MAX_ERRORS = 100
"""A part ends after this many failed requests."""


async def soak(server: TargetServer, n_requests: int, streams: int, seed: int, part: int) -> Run:
    """Run one of `SOAK_PARTS` parts with its share of the requests; then measure memory, while nothing runs."""
    first, end = (n_requests * edge // SOAK_PARTS for edge in (part, part + 1))
    started_s, errors, indexes = time.perf_counter(), list[str](), iter(range(first, end))
    await asyncio.gather(*(_ask(server, seed, indexes, errors) for _ in range(streams)))
    duration_s = time.perf_counter() - started_s
    figures = {"requests": float(end - first), "requests_per_s": (end - first) / duration_s, **memory_figures(server)}
    return Run(server=server.name, scenario="soak", streams=streams, repeat=part, figures=figures, errors=errors)


async def _ask(server: TargetServer, seed: int, indexes: Iterator[int], errors: list[str]) -> None:
    """Send one request after another, each on its own connection. The answers are not kept."""
    for index in indexes:
        request = server.request(prompts(seed, f"soak/{index}", 1)[0], _TOKENS)
        errors += read_all([await attempt(server, request)])[1]
        if len(errors) >= _MAX_ERRORS:
            return
