"""Shared by every child of the supervisor: heartbeats, the measuring of gaps, and loops that end together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sluiceway.ipc.messages.to_supervisor import Heartbeat, ToSupervisor
from sluiceway.ipc.pipes.junk import dropped_messages

HEARTBEAT_S = 0.25

TICK_S = 0.05
"""The precision of measured gaps. Each tick wakes the loop: 50 in a second cost as much as a tenth of 3,000 events."""
WINDOW_S = 30.0

_BUSY = 0.02
"""The share of a processor above which a loop is measured with `TICK_S`."""


async def run_until_first(*loops: Coroutine[Any, Any, None]) -> None:
    """Run endless loops together. When one returns or raises, cancel the others, and raise its exception."""
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
    """Takes reports to the supervisor."""

    def report(self, message: ToSupervisor) -> None:
        """Send a message without waiting."""


class LongestGap:
    """Keeps the longest gap of a loop during the last `WINDOW_S` to twice that time."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._before = self._now = 0.0

    def add(self, gap_s: float, now_s: float) -> None:
        if now_s - self._since_s >= WINDOW_S:
            self._before = self._now if now_s - self._since_s < 2 * WINDOW_S else 0.0
            self._since_s, self._now = now_s, 0.0
        if gap_s > self._now:
            self._now = gap_s

    @property
    def seconds(self) -> float:
        return max(self._before, self._now)


async def beat(control: Reports, measured: Callable[[float, int], None] = lambda gap_s, n_dropped: None) -> None:
    """Send heartbeats for ever, with the longest gap in which the event loop did not run.

    A gap is the time by which the loop wakes this task too late. While the loop is busy, the task wakes often and gaps
    are measured to within `TICK_S`. While it is idle, the task wakes once for each heartbeat, and gaps are measured to
    within `HEARTBEAT_S`. `measured` gets the longest gap, and the number of dropped messages.
    """
    gaps, used_s = LongestGap(time.monotonic()), time.thread_time()
    while True:
        measured(gaps.seconds, dropped_messages.count)
        control.report(Heartbeat(longest_gap_s=gaps.seconds, n_dropped=dropped_messages.count))
        before_s, used_s = used_s, time.thread_time()
        is_busy = used_s - before_s > _BUSY * HEARTBEAT_S
        n_ticks = max(1, round(HEARTBEAT_S / TICK_S)) if is_busy else 1
        for _ in range(n_ticks):
            due_s = time.monotonic() + HEARTBEAT_S / n_ticks
            await asyncio.sleep(HEARTBEAT_S / n_ticks)
            now_s = time.monotonic()
            gaps.add(round(max(0.0, now_s - due_s), 3), now_s)
