"""One of several readers stops reading: what the others notice of it, what the server holds for it, what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from sluiceway_lab.check.line import Line, dial
from sluiceway_lab.check.peer import Peer
from sluiceway_lab.check.question import Finding, Question, Verdict, graded
from sluiceway_lab.check.transcript import read_transcript
from sluiceway_lab.load.replies import LoadError, parse_reply

_ROUNDS = 2
_PATIENCE_S = 2.0
_PATIENCE = 10.0
"""Times what the others need without it, and some seconds: then they hang."""
_HARMLESS, _BEARABLE = 1.5, 4.0
_MUCH_BYTES = 64e6
_FILL_S = 10.0

WHOLE, TOLD, CUT, SILENT = "got all of its answer", "was told of an end", "was cut off without a word", "got no end"


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of the one that stopped. The growth of the server's memory is None where nobody can see it."""

    end: str
    unread_bytes: int
    growth_bytes: int | None


async def _ask(peer: Peer) -> Finding:
    free_s, beside_s = [], []
    for place in range(_ROUNDS):
        free_s.append(await _beside_reader(peer, f"slow/free/{place}"))
        try:
            took_s, stopped = await _beside_stopped(
                peer, f"slow/stopped/{place}", _PATIENCE * min(free_s) + _PATIENCE_S
            )
        except LoadError as fault:
            return Finding(Verdict.FAIL, f"beside a reader that stopped, the others failed: {fault}")
        beside_s.append(took_s)
    return judge(peer.config.streams - 1, min(beside_s) / min(free_s), stopped)


def judge(n_others: int, ratio: float, stopped: Stopped) -> Finding:
    """`ratio` is what the others took, over the same beside a reader that goes on."""
    verdict = graded(ratio, _HARMLESS, _BEARABLE)
    if verdict is Verdict.PASS and (stopped.end == CUT or (stopped.growth_bytes or 0) > _MUCH_BYTES):
        verdict = Verdict.WARN
    if stopped.end == SILENT:
        verdict = Verdict.FAIL
    sentence = (
        f"{n_others} healthy streams beside a stopped reader took {ratio:.2f} x; "
        f"with {stopped.unread_bytes / 1e3:.0f} kB unread it read on and {stopped.end}"
    )
    figures = {"healthy_ratio": ratio, "unread_bytes": float(stopped.unread_bytes)}
    if stopped.growth_bytes is not None:
        sentence += f"; the server's memory grew by {stopped.growth_bytes / 1e6:.1f} MB"
        figures["rss_growth_bytes"] = float(stopped.growth_bytes)
    return Finding(verdict, sentence, figures)


async def _beside_reader(peer: Peer, name: str) -> float:
    async with dial(peer.subject.target, is_narrow=True) as line:
        await line.send(_long_request(peer, name))
        reading = asyncio.create_task(line.read_rest(peer.limit_s))
        try:
            await _fill(peer)
            return await _healthy_s(peer, name, None)
        finally:
            line.reset()
            await asyncio.gather(reading, return_exceptions=True)
            await _settle(peer)


async def _beside_stopped(peer: Peer, name: str, limit_s: float) -> tuple[float, Stopped]:
    """Raises `LoadError` for what the others meet."""
    before_bytes = _rss_bytes(peer)
    async with dial(peer.subject.target, is_narrow=True) as line:
        line.stall()
        await line.send(_long_request(peer, name))
        await _fill(peer)
        try:
            took_s = await _healthy_s(peer, name, limit_s)
        except LoadError:
            line.reset()
            raise
        growth_bytes = _rss_bytes(peer) - before_bytes if peer.subject.processes else None
        line.resume()
        return took_s, Stopped(*await _end_of(line, peer.limit_s), growth_bytes)


async def _settle(peer: Peer) -> None:
    """Until the one that was left is over, where that can be seen."""
    if peer.subject.kind is not None:
        await peer.seconds_until_idle(peer.limit_s)


async def _fill(peer: Peer) -> None:
    """Until half of the long answer is made: by then what lies before the reader who stopped is full."""
    await asyncio.sleep(min(_FILL_S, peer.config.long_tokens * peer.pace.gap_s / 2))


def _long_request(peer: Peer, name: str) -> bytes:
    (prompt,) = peer.prompts(f"{name}/long", 1)
    return peer.subject.request(prompt, peer.config.long_tokens)


async def _healthy_s(peer: Peer, name: str, limit_s: float | None) -> float:
    """How long all the others take together. Raises `LoadError` where one fails or takes too long."""
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            await peer.streams(peer.prompts(name, peer.config.streams - 1), peer.config.tokens)
    except TimeoutError:
        raise LoadError(f"they had not ended after {limit_s:.1f} s") from None
    return time.perf_counter() - started_s


async def _end_of(line: Line, limit_s: float) -> tuple[str, int]:
    """What it finds when it reads on, and how much of it."""
    try:
        raw = await line.read_rest(limit_s)
    except LoadError:
        return SILENT, 0
    end = CUT
    with contextlib.suppress(LoadError):
        said = read_transcript(parse_reply([(0.0, raw)]))
        if said.finish_reasons and said.n_after_done is not None:
            end = WHOLE
        elif said.errors:
            end = TOLD
    return end, len(raw)


def _rss_bytes(peer: Peer) -> int:
    return sum(used.rss_bytes for found in peer.subject.usages().values() for used in found)


QUESTION = Question("slow-reader", "What do the others notice when one of them stops reading?", _ask)
