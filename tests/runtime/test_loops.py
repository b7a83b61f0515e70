"""The loops of a process end together, and send heartbeats."""

from __future__ import annotations

import asyncio
import time

import pytest

from sluiceway.ipc.messages.to_supervisor import Heartbeat, ToSupervisor
from sluiceway.runtime import loops
from sluiceway.runtime.loops import WINDOW_S, LongestGap, beat, run_until_first


class Endless:
    """A loop that records that it was cancelled and could clean up."""

    def __init__(self) -> None:
        self.has_cleaned_up = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.has_cleaned_up = True


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    raise RuntimeError("broken")


async def test_all_loops_end_when_one_returns() -> None:
    """The others are cancelled, and have cleaned up."""
    first, second = Endless(), Endless()
    await run_until_first(first.run(), returns(), second.run())
    assert first.has_cleaned_up and second.has_cleaned_up


async def test_all_loops_end_and_the_error_is_raised_when_one_fails() -> None:
    """The process ends with it, and the supervisor starts another."""
    other = Endless()
    with pytest.raises(RuntimeError, match="broken"):
        await run_until_first(other.run(), fails())
    assert other.has_cleaned_up


async def test_all_loops_end_when_their_caller_is_cancelled() -> None:
    """No task is left behind."""
    loop = Endless()
    caller = asyncio.create_task(run_until_first(loop.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert loop.has_cleaned_up


async def test_heartbeats_are_sent_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the loop is cancelled, or sending fails."""
    monkeypatch.setattr(loops, "HEARTBEAT_S", 0.0)
    reported: list[ToSupervisor] = []

    class Control:
        def report(self, message: ToSupervisor) -> None:
            if len(reported) == 3:
                raise RuntimeError("broken")
            reported.append(message)

    with pytest.raises(RuntimeError, match="broken"):
        await beat(Control())
    assert [type(report) for report in reported] == [Heartbeat] * 3


async def test_blocked_loop_reports_the_length_of_the_gap() -> None:
    """The gap is in the next heartbeat, and passed to `measured`."""
    reported: list[Heartbeat] = []
    measured: list[tuple[float, int]] = []

    class Control:
        def report(self, message: ToSupervisor) -> None:
            assert isinstance(message, Heartbeat)
            reported.append(message)

    task = asyncio.create_task(beat(Control(), lambda gap_s, n_dropped: measured.append((gap_s, n_dropped))))
    await asyncio.sleep(0)
    started_s = time.monotonic()
    while time.monotonic() < started_s + 2 * loops.HEARTBEAT_S:
        pass
    n_before = len(reported)
    while len(reported) == n_before:  # noqa: ASYNC110 - the loop that is tested is this one
        await asyncio.sleep(0)
    task.cancel()
    assert reported[-1].longest_gap_s > 0
    assert measured[-1][0] == reported[-1].longest_gap_s


def test_longest_gap_is_forgotten_after_two_windows() -> None:
    """A scrape twice a minute sees all gaps since the previous scrape, and no old ones."""
    gaps = LongestGap(0.0)
    gaps.add(3.0, 1.0)
    gaps.add(1.0, 2.0)
    assert gaps.seconds == 3.0
    gaps.add(0.5, WINDOW_S)
    assert gaps.seconds == 3.0
    gaps.add(0.1, 2 * WINDOW_S)
    assert gaps.seconds == 0.5
    gaps.add(2.0, 3 * WINDOW_S - 1)
    gaps.add(0.2, 100 * WINDOW_S)
    assert gaps.seconds == 0.2
