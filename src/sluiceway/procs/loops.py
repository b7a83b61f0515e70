"""What every child of the supervisor shares: how it says that it lives, and how its loops end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from sluiceway.messages.to_supervisor import Heartbeat, ToSupervisor

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


class Reports(Protocol):
    """The way to the supervisor."""

    def report(self, message: ToSupervisor) -> None:
        """Does not wait."""


async def beat(control: Reports) -> None:
    """Say that the event loop turns, for ever."""
    while True:
        control.report(Heartbeat())
        await asyncio.sleep(HEARTBEAT_S)
