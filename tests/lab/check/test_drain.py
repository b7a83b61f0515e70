"""A server that is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sluiceway_lab.check.drain import QUESTION, judge
from sluiceway_lab.check.question import Finding
from sluiceway_lab.load.record import Grade
from support.model_server import Fault, ask, context_of, model_server


async def drained(fault: Fault | None) -> Finding:
    """The signal goes to this process, which runs the server."""
    loop = asyncio.get_running_loop()
    async with model_server(fault) as (script, server):
        loop.add_signal_handler(signal.SIGTERM, script.drain, server)
        try:
            return await QUESTION.ask(await context_of(script, drain_pid=os.getpid()))
        finally:
            loop.remove_signal_handler(signal.SIGTERM)


async def test_streams_that_end_well_pass() -> None:
    found = await drained(None)
    assert found.grade is Grade.PASS and found.sentence.startswith("4 of 4 running streams ended whole")


async def test_streams_that_are_cut_fail() -> None:
    found = await drained("dies")
    assert found.grade is Grade.FAIL and found.sentence.startswith("4 of 4 streams were cut off without an error")


async def test_nothing_is_ended_unasked() -> None:
    found = await ask(QUESTION)
    assert found.grade is Grade.UNKNOWN and "--drain-pid" in found.sentence


@pytest.mark.parametrize(
    ("ends", "newcomer", "gone_s", "grade"),
    [
        (["served", "an error in the stream"], "refused", 1.0, Grade.PASS),
        (["served"], "no answer from http://h", 1.0, Grade.PASS),
        (["served"], "served", 1.0, Grade.WARN),
        (["served"], "the answer broke off", 1.0, Grade.WARN),
        (["served"], "refused", None, Grade.FAIL),
        (["the answer broke off"], "refused", 1.0, Grade.FAIL),
    ],
)
def test_end_is_judged(ends: list[str], newcomer: str, gone_s: float | None, grade: Grade) -> None:
    assert judge(ends, newcomer, gone_s).grade is grade
