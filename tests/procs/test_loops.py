"""The loops of a process end together, and say that they live."""

from __future__ import annotations

import asyncio

import pytest

from sluiceway.messages.to_supervisor import Heartbeat, ToSupervisor
from sluiceway.procs import loops
from sluiceway.procs.loops import beat, run_until_first


class Endless:
    """A loop that notes whether it was cancelled, and that it had the time to tidy up."""

    def __init__(self) -> None:
        self.has_tidied_up = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.has_tidied_up = True


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    raise RuntimeError("broken")


async def test_all_end_when_one_returns() -> None:
    """The others are cancelled, and waited for."""
    first, second = Endless(), Endless()
    await run_until_first(first.run(), returns(), second.run())
    assert first.has_tidied_up and second.has_tidied_up


async def test_all_end_and_the_error_is_raised_when_one_fails() -> None:
    """A loop that breaks takes the process with it; the supervisor starts another."""
    other = Endless()
    with pytest.raises(RuntimeError, match="broken"):
        await run_until_first(other.run(), fails())
    assert other.has_tidied_up


async def test_all_end_when_the_whole_is_cancelled() -> None:
    """No task is left behind."""
    loop = Endless()
    whole = asyncio.create_task(run_until_first(loop.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert loop.has_tidied_up


async def test_life_is_reported_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the loop is cancelled, or what it reports to breaks."""
    monkeypatch.setattr(loops, "HEARTBEAT_S", 0.0)
    reported: list[ToSupervisor] = []

    class Control:
        def report(self, message: ToSupervisor) -> None:
            if len(reported) == 3:
                raise RuntimeError("broken")
            reported.append(message)

    with pytest.raises(RuntimeError, match="broken"):
        await beat(Control())
    assert reported == [Heartbeat()] * 3
