"""Asks how running streams end when the server is told to stop. The server is gone afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.overload import REFUSED, SERVED, outcome_of
from sluiceway_lab.check.question import Finding, Question, by_faults, unknown
from sluiceway_lab.load.client import Connection, LoadError
from sluiceway_lab.load.streams import Outcome

_STREAMS = 4
_SETTLED_READS = 4
_POLL_S = 0.01
_NOTICE_S = 0.5
"""How long the server may need to notice a signal."""
_TOLD = ("an error in the stream", REFUSED)
_NO_ANSWER = "no answer from"


async def _ask(context: CheckContext) -> Finding:
    if context.drain_pid is None:
        return unknown("it stops the server, so it is asked only with --drain-pid")
    target = context.server.target
    texts = context.prompts("drain", _STREAMS)
    calls = [await Connection.open(target, context.server.request(text, context.config.tokens * 2)) for text in texts]
    while any(call.n_reads < _SETTLED_READS and not call.is_over for call in calls):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    os.kill(context.drain_pid, signal.SIGTERM)
    signalled_s = time.perf_counter()
    await asyncio.sleep(_NOTICE_S)
    late = outcome_of(await _late_request(context))
    ends = [outcome_of(await _end_of(call, context.limit_s)) for call in calls]
    gone_s = await _gone_s(context, signalled_s)
    return judge(ends, late, gone_s)


def judge(ends: list[str], late: str, gone_s: float | None) -> Finding:
    """`gone_s` is the time from the signal until the server stopped listening."""
    n_whole, n_told = ends.count(SERVED), sum(end in _TOLD for end in ends)
    faults = [f"{len(ends) - n_whole - n_told} of {len(ends)} streams were cut off without an error"]
    if n_whole + n_told == len(ends):
        faults = []
    if gone_s is None:
        faults.append("the server continued to listen")
    blemishes = []
    if late == SERVED:
        blemishes.append("a new request was still served")
    elif late != REFUSED and not late.startswith(_NO_ANSWER):
        blemishes.append(f"the answer to a new request: {late}")
    praise = (
        f"{n_whole} of {len(ends)} running streams ended whole, {n_told} with an error; a new request was refused; "
        f"the server stopped listening {gone_s or 0.0:.1f} s after the signal"
    )
    return by_faults(faults, blemishes, praise, {} if gone_s is None else {"gone_s": gone_s})


async def _late_request(context: CheckContext) -> Outcome:
    (prompt,) = context.prompts("drain/late", 1)
    try:
        return await context.record(context.server.request(prompt, 1))
    except LoadError as fault:
        return fault


async def _end_of(call: Connection, limit_s: float) -> Outcome:
    try:
        return await call.end(limit_s)
    except LoadError as fault:
        return fault


async def _gone_s(context: CheckContext, signalled_s: float) -> float | None:
    """Return the seconds until the server stops listening; None if it still listens at the limit."""
    while (now_s := time.perf_counter()) - signalled_s < context.limit_s:
        try:
            (await Connection.open(context.server.target, b"")).finish()
        except LoadError:
            return now_s - signalled_s
        await asyncio.sleep(_POLL_S)
    return None


QUESTION = Question("drain", "Do running streams end well when the server is told to stop?", _ask)
