"""Asks what other readers notice when one stops reading, what the server holds for it, and how its stream ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, graded
from sluiceway_lab.load.client import Connection, LoadError, dial, parse_reply
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import read_transcript

_ROUNDS = 2
_PATIENCE_S = 2.0
_PATIENCE = 10.0
"""The others hang if they take this many times as long as without the stopped reader, plus some seconds."""
_HARMLESS, _BEARABLE = 1.5, 4.0
_MUCH_BYTES = 64e6
_FILL_S = 10.0

WHOLE, TOLD, CUT, SILENT = "got its whole answer", "got an error", "was cut off without an error", "got no end"


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the stream of the stopped reader ended. The memory growth is None if it cannot be measured."""

    end: str
    unread_bytes: int
    growth_bytes: int | None


async def _ask(context: CheckContext) -> Finding:
    free_s, beside_s = [], []
    for place in range(_ROUNDS):
        free_s.append(await _beside_reader(context, f"slow/free/{place}"))
        try:
            took_s, stopped = await _beside_stopped(
                context, f"slow/stopped/{place}", _PATIENCE * min(free_s) + _PATIENCE_S
            )
        except LoadError as fault:
            return Finding(Grade.FAIL, f"next to a stopped reader, the others failed: {fault}")
        beside_s.append(took_s)
    return judge(context.config.streams - 1, min(beside_s) / min(free_s), stopped)


def judge(n_others: int, ratio: float, stopped: Stopped) -> Finding:
    """`ratio` is the time of the others, divided by their time next to a reader that reads on."""
    grade = graded(ratio, _HARMLESS, _BEARABLE)
    if grade is Grade.PASS and (stopped.end == CUT or (stopped.growth_bytes or 0) > _MUCH_BYTES):
        grade = Grade.WARN
    if stopped.end == SILENT:
        grade = Grade.FAIL
    sentence = (
        f"{n_others} healthy streams next to a stopped reader took {ratio:.2f} x; "
        f"with {stopped.unread_bytes / 1e3:.0f} kB unread it read on and {stopped.end}"
    )
    figures = {"healthy_ratio": ratio, "unread_bytes": float(stopped.unread_bytes)}
    if stopped.growth_bytes is not None:
        sentence += f"; the server's memory grew by {stopped.growth_bytes / 1e6:.1f} MB"
        figures["rss_growth_bytes"] = float(stopped.growth_bytes)
    return Finding(grade, sentence, figures)


async def _beside_reader(context: CheckContext, name: str) -> float:
    async with dial(context.server.target, is_narrow=True) as connection:
        connection.send(_long_request(context, name))
        reading = asyncio.create_task(connection.read_rest(context.limit_s))
        try:
            await _fill(context)
            return await _healthy_s(context, name, None)
        finally:
            connection.reset()
            await asyncio.gather(reading, return_exceptions=True)
            await _settle(context)


async def _beside_stopped(context: CheckContext, name: str, limit_s: float) -> tuple[float, Stopped]:
    """Raises `LoadError` if one of the other streams fails."""
    before_bytes = _rss_bytes(context)
    async with dial(context.server.target, is_narrow=True) as connection:
        connection.stall()
        connection.send(_long_request(context, name))
        await _fill(context)
        try:
            took_s = await _healthy_s(context, name, limit_s)
        except LoadError:
            connection.reset()
            raise
        growth_bytes = _rss_bytes(context) - before_bytes if context.server.processes else None
        connection.resume()
        return took_s, Stopped(*await _end_of(connection, context.limit_s), growth_bytes)


async def _settle(context: CheckContext) -> None:
    """Wait until the abandoned stream has ended, if the server has gauges."""
    if context.server.kind is not None:
        await context.seconds_until_idle(context.limit_s)


async def _fill(context: CheckContext) -> None:
    """Wait until half of the long answer is generated. The buffers before the stopped reader are full by then."""
    await asyncio.sleep(min(_FILL_S, context.config.long_tokens * context.pace.itl_s / 2))


def _long_request(context: CheckContext, name: str) -> bytes:
    (prompt,) = context.prompts(f"{name}/long", 1)
    return context.server.request(prompt, context.config.long_tokens)


async def _healthy_s(context: CheckContext, name: str, limit_s: float | None) -> float:
    """Return how long the other streams take together. Raises `LoadError` if one fails or takes too long."""
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            await context.streams(context.prompts(name, context.config.streams - 1), context.config.tokens)
    except TimeoutError:
        raise LoadError(f"they had not ended after {limit_s:.1f} s") from None
    return time.perf_counter() - started_s


async def _end_of(connection: Connection, limit_s: float) -> tuple[str, int]:
    """Return how the stream ends when the reader reads on, and how many bytes it gets."""
    try:
        raw = await connection.read_rest(limit_s)
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


def _rss_bytes(context: CheckContext) -> int:
    return sum(used.rss_bytes for found in context.server.usages().values() for used in found)


QUESTION = Question("slow-reader", "What do other readers notice when one stops reading?", _ask)
