"""One of several readers stops reading: what the others notice of it, what the server holds for it, what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sluiceway.lab.check.line import Line, dial
from sluiceway.lab.check.peer import Peer
from sluiceway.lab.check.question import Finding, Question, Verdict, graded
from sluiceway.lab.check.transcript import read_transcript
from sluiceway.lab.load.replies import LoadError, parse_reply

_BUFFER_BYTES = 4096
_ROUNDS = 2
_PATIENCE_S = 2.0
_PATIENCE = 10.0
"""Times what the others need without it, and some seconds: then they hang."""
_HARMLESS, _BEARABLE = 1.5, 4.0
_MUCH_BYTES = 64e6
_HOLD_S = 10.0


async def _ask(peer: Peer) -> Finding:
    free_s, beside_s, end, growth = [], [], "", 0
    for place in range(_ROUNDS):
        free_s.append(await _healthy_s(peer, f"slow/free/{place}", peer.limit_s))
        before = _rss_bytes(peer)
        async with dial(peer.subject.target, receive_buffer_bytes=_BUFFER_BYTES) as stopped:
            (prompt,) = peer.prompts(f"slow/stopped/{place}", 1)
            await stopped.send(peer.subject.request(prompt, peer.config.long_tokens))
            try:
                patience_s = _PATIENCE * min(free_s) + _PATIENCE_S
                beside_s.append(await _healthy_s(peer, f"slow/beside/{place}", patience_s))
            except LoadError as fault:
                stopped.reset()
                return Finding(Verdict.FAIL, f"beside a reader that stopped, the others failed: {fault}")
            await asyncio.sleep(min(_HOLD_S, peer.config.long_tokens * peer.pace.gap_s))
            growth = max(growth, _rss_bytes(peer) - before)
            end = await _end_of(stopped, peer.limit_s)
    return judge(peer.config.streams - 1, min(beside_s) / min(free_s), end, growth if peer.subject.processes else None)


def judge(n_others: int, ratio: float, end: str, growth_bytes: int | None) -> Finding:
    """`end` is one of `ENDS`. `growth_bytes` is None where nobody can see it."""
    verdict = graded(ratio, _HARMLESS, _BEARABLE)
    if verdict is Verdict.PASS and (end == CUT or (growth_bytes or 0) > _MUCH_BYTES):
        verdict = Verdict.WARN
    if end == SILENT:
        verdict = Verdict.FAIL
    sentence = f"{n_others} healthy streams beside a stopped reader took {ratio:.2f} x; when it read on, it {end}"
    figures = {"healthy_ratio": ratio}
    if growth_bytes is not None:
        sentence += f"; the server's memory grew by {growth_bytes / 1e6:.1f} MB"
        figures["rss_growth_bytes"] = float(growth_bytes)
    return Finding(verdict, sentence, figures)


WHOLE, TOLD, CUT, SILENT = "got all of its answer", "was told of an end", "was cut off without a word", "got no end"
ENDS = (WHOLE, TOLD, CUT, SILENT)


async def _healthy_s(peer: Peer, name: str, limit_s: float) -> float:
    """How long all the others take together. Raises `LoadError` where one fails or takes too long."""
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            await peer.streams(peer.prompts(name, peer.config.streams - 1), peer.config.tokens)
    except TimeoutError:
        raise LoadError(f"they had not ended after {limit_s:.1f} s") from None
    return time.perf_counter() - started_s


async def _end_of(stopped: Line, limit_s: float) -> str:
    """What it finds when it reads on."""
    try:
        raw = await stopped.read_rest(limit_s)
    except LoadError:
        return SILENT
    with contextlib.suppress(LoadError):
        said = read_transcript(parse_reply([(0.0, raw)]))
        if said.finish_reasons and said.n_after_done is not None:
            return WHOLE
        if said.errors:
            return TOLD
    return CUT


def _rss_bytes(peer: Peer) -> int:
    return sum(used.rss_bytes for found in peer.subject.usages().values() for used in found)


QUESTION = Question("slow-reader", "What do the others notice when one of them stops reading?", _ask)
