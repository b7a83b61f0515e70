"""Asks whether each of too many requests is served or refused in order, without a hang or a reset."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter

from sluiceway_lab.check.context import CheckContext, Silence
from sluiceway_lab.check.question import Finding, Question, by_faults
from sluiceway_lab.load.client import LoadError, Recording
from sluiceway_lab.load.streams import Outcome
from sluiceway_lab.load.transcript import read_transcript

_TOKENS = (4, 256)
_BUDGET_S = 20.0
"""How long all requests may take together, if eight run at the speed of one."""
_AT_ONCE = 8
_LATE = 0.8
"""A share of the time limit. If an answer comes later than that, the queue was still moving."""
_BUSY = (429, 503)
SERVED, REFUSED, WAITED = "served", "refused", "waited without an answer"
_WITHOUT_TIME = "refused without retry-after"


async def _ask(context: CheckContext) -> Finding:
    started_s = time.perf_counter()
    n = min(context.config.burst, _most_connections())
    n_tokens = answer_tokens(n, context.pace.itl_s)
    outcomes = await asyncio.gather(*(_attempt(context, f"Number {place}:", n_tokens) for place in range(n)))
    (prompt,) = context.prompts("overload/after", 1)
    await context.plain(prompt, 1)
    last_s = max((outcome.ended_s for outcome in outcomes if isinstance(outcome, Recording)), default=0.0)
    is_moving = last_s - started_s > _LATE * context.limit_s
    return judge([outcome_of(outcome) for outcome in outcomes], is_moving=is_moving)


def answer_tokens(n: int, itl_s: float) -> int:
    """Return an answer length that lets a queue build up."""
    least, most = _TOKENS
    return min(most, max(least, int(_BUDGET_S * _AT_ONCE / (n * max(itl_s, 1e-6)))))


def judge(outcomes: list[str], *, is_moving: bool) -> Finding:
    """`is_moving`: other requests were still answered when the last one gave up, so it was only a long queue."""
    counted = Counter(outcomes)
    n_served, n_untimed = counted.pop(SERVED, 0), counted.pop(_WITHOUT_TIME, 0)
    n_refused = counted.pop(REFUSED, 0) + n_untimed
    n_waited = counted.pop(WAITED, 0) if is_moving else 0
    faults = [f"{n} of {len(outcomes)} simultaneous requests: {what}" for what, n in counted.items()]
    if not n_served:
        faults.append("none was served")
    blemishes = [f"{n_untimed} of {n_refused} refusals had no retry-after"] if n_untimed else []
    if n_waited:
        blemishes.append(
            f"{n_waited} of {len(outcomes)} simultaneous requests got nothing in time, while others were served"
        )
    refusals = f"and {n_refused} refused with retry-after" if n_refused else "and none was refused"
    praise = f"of {len(outcomes)} simultaneous requests {n_served} were served {refusals}"
    return by_faults(faults, blemishes, praise, {"served": float(n_served), "refused": float(n_refused)})


def outcome_of(outcome: Outcome) -> str:
    """Return a word or a sentence for what became of a request."""
    try:
        if isinstance(outcome, LoadError):
            raise outcome
        reply = outcome.reply()
        if reply.status in _BUSY:
            return REFUSED if "retry-after" in reply.headers else _WITHOUT_TIME
        said = read_transcript(reply)
    except Silence:
        return WAITED
    except LoadError as fault:
        return str(fault)
    if said.errors:
        return "an error in the stream"
    return SERVED if said.finish_reasons and said.is_whole else "the answer broke off"


async def _attempt(context: CheckContext, text: str, n_tokens: int) -> Outcome:
    try:
        return await context.record(context.server.request(text, n_tokens))
    except LoadError as fault:
        return fault


def _most_connections() -> int:
    """Return half of the number of files that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


QUESTION = Question("overload", "Is each of too many requests served or refused properly?", _ask)
