"""Asks what a client receives while it waits for its first token: headers, comments, or nothing."""

from __future__ import annotations

import asyncio
import itertools
import math
from http import HTTPStatus

from sluiceway_lab.check.context import CheckContext, Silence
from sluiceway_lab.check.question import Finding, Question, unknown
from sluiceway_lab.load.client import Recording
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import read_transcript
from sluiceway_lab.load.workload import long_prompt

_FEW_ITLS = 3.0
_EARLY = 0.5
_FEW = 2
"""How many times more streams than in other questions."""
_ALL_REFUSED = "none of the long prompts was served"
_PATIENT_S = 15.0
_LONG_ENOUGH_S = 20.0
_MOST_WAITING = 256
"""Proxies cut a silent connection after 30 to 60 seconds. A comment every 15 seconds is safe."""


async def _ask_headers(context: CheckContext) -> Finding:
    try:
        waiting = await _waiting_streams(context, "first-byte", _FEW * context.config.streams)
    except Silence as fault:
        return unknown(f"no stream to look at: {fault}")
    if not waiting:
        return unknown(_ALL_REFUSED)
    one = waiting[0]
    headers_s = one.reads[0][0] - one.started_s
    return judge_headers(headers_s, _first_token_s(one), context.pace.itl_s)


async def _ask_silence(context: CheckContext) -> Finding:
    """If no stream waits long enough, try once more with as many streams as should be needed."""
    n = _FEW * context.config.streams
    try:
        found = await _silence_among(context, "silence", n)
        n_more = enough_to_wait(n, found.figures.get("longest_silence_s", 0.0))
        if found.grade is Grade.UNKNOWN and n_more is not None:
            found = await _silence_among(context, "silence/more", n_more)
    except Silence:
        return judge_silence(context.limit_s, 0)
    return found


def enough_to_wait(n: int, longest_s: float) -> int | None:
    """Return how many streams make one wait long enough, if one of `n` waits for `longest_s`; None if too many."""
    n_more = math.ceil(n * _LONG_ENOUGH_S / longest_s) if longest_s > 0 else _MOST_WAITING + 1
    return n_more if n < n_more <= _MOST_WAITING else None


async def _silence_among(context: CheckContext, name: str, n: int) -> Finding:
    waiting = await _waiting_streams(context, name, n)
    if not waiting:
        return unknown(_ALL_REFUSED)
    longest_s = max(_longest_silence_s(one) for one in waiting)
    n_comments = sum(read_transcript(one.reply()).n_comments for one in waiting)
    return judge_silence(longest_s, n_comments)


def judge_headers(headers_s: float, first_token_s: float, itl_s: float) -> Finding:
    """Both times are from before the connection was opened."""
    figures = {"headers_s": headers_s, "first_token_s": first_token_s}
    if first_token_s < _FEW_ITLS * itl_s:
        return unknown(f"the first token of a long prompt came after {first_token_s * 1e3:.0f} ms: too soon to tell")
    sentence = (
        f"headers came after {headers_s * 1e3:.0f} ms, at {headers_s / first_token_s:.0%} of the wait "
        f"for the first token"
    )
    grade = Grade.PASS if headers_s <= _EARLY * first_token_s else Grade.WARN
    return Finding(grade, sentence, figures)


def judge_silence(longest_s: float, n_comments: int) -> Finding:
    figures = {"longest_silence_s": longest_s, "comments": float(n_comments)}
    if n_comments:
        return Finding(Grade.PASS, f"{n_comments} comments; never silent for more than {longest_s:.1f} s", figures)
    if longest_s < _PATIENT_S:
        return Finding(Grade.UNKNOWN, f"no stream was silent for longer than {longest_s:.1f} s", figures)
    return Finding(Grade.WARN, f"a waiting stream was silent for {longest_s:.1f} s, without a comment", figures)


async def _waiting_streams(context: CheckContext, name: str, n: int) -> list[Recording]:
    """Send long prompts at the same time, so that some wait.

    Return those that were not refused, the longest wait first.
    """
    names = [f"check/{name}/{place}" for place in range(n)]
    texts = [long_prompt(context.config.seed, one, context.config.prompt_words) for one in names]
    requests = [context.server.request(text, context.config.tokens // 4) for text in texts]
    recordings = await asyncio.gather(*(context.record(request) for request in requests))
    served = [one for one in recordings if one.reply().status == HTTPStatus.OK]
    return sorted(served, key=_first_token_s, reverse=True)


def _first_token_s(one: Recording) -> float:
    deltas = read_transcript(one.reply()).deltas
    return deltas[0].at_s - one.started_s if deltas else 0.0


def _longest_silence_s(one: Recording) -> float:
    times = [one.started_s, *(at_s for at_s, _ in one.reads)]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


HEADERS = Question(
    "first-byte", "Do the headers of a stream come when it is accepted, before its first token?", _ask_headers
)
SILENCE = Question("silence", "Does a stream that waits long send comments, so that no proxy cuts it?", _ask_silence)
