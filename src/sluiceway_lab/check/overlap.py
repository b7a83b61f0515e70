"""Asks whether several streams run at the same time, and whether that is faster."""

from __future__ import annotations

import time

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import Transcript

_WORTH_IT = 1.2
"""The least speed-up over one after another that counts as batching."""


async def _ask(context: CheckContext) -> Finding:
    n, n_tokens = context.config.streams, context.config.tokens
    started_s = time.perf_counter()
    for prompt in context.prompts("overlap/alone", n):
        await context.stream(prompt, n_tokens)
    alone_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    answers = await context.streams(context.prompts("overlap/together", n), n_tokens)
    together_s = time.perf_counter() - started_s
    return judge(n_at_once(answers), n, alone_s / together_s)


def judge(n_begun: int, n: int, ratio: float) -> Finding:
    """Running a few of many at a time is permitted. Running one at a time fails."""
    grade = Grade.FAIL if n_begun < 2 else Grade.WARN if ratio < _WORTH_IT or n_begun < n else Grade.PASS
    sentence = (
        f"{n_begun} of {n} streams had begun before the first of them ended; "
        f"together they were {ratio:.2f} times as fast as one after another"
    )
    return Finding(grade, sentence, {"streams_begun": n_begun, "over_alone": ratio})


def n_at_once(answers: list[Transcript]) -> int:
    """Return how many had begun when the first one ended."""
    said = [answer.deltas for answer in answers if answer.deltas]
    first_end_s = min((deltas[-1].at_s for deltas in said), default=0.0)
    return sum(deltas[0].at_s <= first_end_s for deltas in said)


QUESTION = Question(
    "overlap", "Do several streams run at the same time, and is that faster than one after another?", _ask
)
