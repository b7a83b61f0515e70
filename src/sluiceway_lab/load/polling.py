"""Waits for a condition by asking repeatedly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluiceway_lab.load.replies import LoadError

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]], what: str, *, limit_s: float, pause_s: float) -> T:
    """Call `look` until it returns something true, and return that. Raises `LoadError` after `limit_s`."""
    deadline_s = time.perf_counter() + limit_s
    while not (found := await look()):
        if time.perf_counter() > deadline_s:
            raise LoadError(f"waited {limit_s:g} s in vain for {what}")
        await asyncio.sleep(pause_s)
    return found
