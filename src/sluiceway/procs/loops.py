"""What every child of the supervisor shares: how often it says that it lives, and how its tasks end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

HEARTBEAT_S = 0.25


async def run_until_first(*loops: Coroutine[Any, Any, None]) -> None:
    """Run endless loops side by side; when one returns or raises, cancel the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
