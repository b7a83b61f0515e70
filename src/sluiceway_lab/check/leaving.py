"""Asks what happens when clients leave: in order, abruptly, without streaming, before their first token.

The time until the server is idle is compared with the time that the rest of the answer would have taken. A server that
continues for most of that time has not noticed. The questions need the server's own gauges.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from sluiceway_lab.check.context import FIRST_LOOKS_S, CheckContext
from sluiceway_lab.check.question import Finding, Question, graded, unknown
from sluiceway_lab.load.client import Connection, LoadError, dial
from sluiceway_lab.load.record import Grade

_EVENTS_FIRST = 8
_LEAVERS = 4
_SHORTEST_S = 0.5
"""If the rest takes less time, the question is not judged: the time of a scrape is part of the measurement."""
_PROMPT, _LATE = 0.25, 0.6
"""Limits, as shares of what the rest of the answer would have taken."""

_QUIET_S = 1.5
"""Some servers check their connections once a second while they wait for an event. This is longer."""

Leave = Callable[[Connection], None]


async def _leave_stream(context: CheckContext, leave: Leave, name: str) -> Finding:
    """Leave one stream in its middle."""
    if (hindrance := await _hindrance(context)) is not None:
        return hindrance
    async with _under_way(context, name, 1) as connections:
        n_read = await _read_events(connections[0], context.limit_s)
        leave(connections[0])
        return await _until_idle(context, 1, context.config.long_tokens - n_read)


async def _ask_fin(context: CheckContext) -> Finding:
    return await _leave_stream(context, Connection.finish, "fin")


async def _ask_rst(context: CheckContext) -> Finding:
    return await _leave_stream(context, Connection.reset, "rst")


async def _ask_plain(context: CheckContext) -> Finding:
    """The server writes nothing while it computes such an answer, so it must watch the connection."""
    if (hindrance := await _hindrance(context)) is not None:
        return hindrance
    (prompt,) = context.prompts("plain", 1)
    async with dial(context.server.target) as connection:
        connection.send(context.plain_request(prompt, context.config.long_tokens))
        await context.until_busy()
        connection.finish()
        return await _until_idle(context, 1, context.config.long_tokens)


async def _ask_waiting(context: CheckContext) -> Finding:
    """Many clients leave before most have a token, half of them in order and half abruptly."""
    if (hindrance := await _hindrance(context)) is not None:
        return hindrance
    n = 4 * context.config.streams
    async with _under_way(context, "waiting", n) as connections:
        await context.until_busy()
        for place, connection in enumerate(connections):
            (connection.finish if place % 2 else connection.reset)()
        return await _until_idle(context, n, context.config.long_tokens)


async def _ask_waste(context: CheckContext) -> Finding:
    """Compare with the tokens that the server has counted. If probes refresh its gauges, their tokens count too."""
    if (hindrance := await _hindrance(context)) is not None:
        return hindrance
    before = await context.generated()
    async with _under_way(context, "waste", _LEAVERS) as connections:
        n_read = sum([await _read_events(connection, context.limit_s) for connection in connections])
        for connection in connections:
            connection.finish()
        if await context.seconds_until_idle(context.limit_s) is None:
            return Finding(Grade.FAIL, f"the server still computes {context.limit_s:g} s after all clients had left")
    after = await context.generated()
    assert before is not None and after is not None
    return judge_waste(_LEAVERS, n_read, after - before, _LEAVERS * context.config.long_tokens)


def judge(n: int, idle_s: float | None, rest_s: float, limit_s: float) -> Finding:
    """`rest_s` is the time that the abandoned answers would still have taken."""
    if idle_s is None:
        return Finding(Grade.FAIL, f"the server still computes {limit_s:g} s after the client has left")
    if rest_s < _SHORTEST_S and idle_s > _PROMPT * rest_s:
        return unknown(f"the rest of the answer would take {rest_s * 1e3:.0f} ms: too soon to tell")
    who = "the reader" if n == 1 else f"all {n} readers"
    sentence = (
        f"nothing ran {idle_s * 1e3:.0f} ms after {who} left; the rest of the answer would have taken {rest_s:.2g} s"
    )
    figures = {"until_idle_s": idle_s, "rest_s": rest_s}
    return Finding(graded(idle_s / rest_s, _PROMPT, _LATE), sentence, figures)


def judge_waste(n: int, n_read: int, generated: float, asked: int) -> Finding:
    """Tokens on the way to a client that leaves are lost with any server, the rest of the answer need not be."""
    if generated < n_read:
        return unknown(
            f"the server counts {generated:.0f} tokens where {n_read} were read: its count leaves out clients that left"
        )
    wasted = generated - n_read
    sentence = f"{n} readers left after {n_read} tokens of {asked}; the server generated {wasted:.0f} in vain"
    figures = {"tokens_read": float(n_read), "tokens_wasted": wasted}
    return Finding(graded(wasted / (asked - n_read), _PROMPT, _LATE), sentence, figures)


async def _hindrance(context: CheckContext) -> Finding | None:
    """Return why the question cannot be asked; None if the server is idle and has known gauges."""
    if context.server.kind is None:
        return unknown("the server has no gauges that are known here (/metrics), so it is unknown when it is idle")
    if await context.seconds_until_idle(context.limit_s) is None:
        return unknown("the server was busy before anything was asked: other clients use it")
    return None


async def _until_idle(context: CheckContext, n: int, n_left: int) -> Finding:
    rest_s = n_left * context.pace.itl_s
    idle_s = await context.seconds_until_idle(context.limit_s, quiet_s=quiet_within(rest_s))
    return judge(n, idle_s, rest_s, context.limit_s)


def quiet_within(rest_s: float) -> float:
    """Return how long to pause between two looks, so that a server that notices in a pause passes; 0: do not pause."""
    left_s = _PROMPT * rest_s - FIRST_LOOKS_S
    return _QUIET_S if left_s > _QUIET_S else 0.0


@contextlib.asynccontextmanager
async def _under_way(context: CheckContext, name: str, n: int) -> AsyncIterator[Sequence[Connection]]:
    """Request long streams. They are not read yet."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(dial(context.server.target)) for _ in range(n)]
        for connection, prompt in zip(connections, context.prompts(name, n), strict=True):
            connection.send(context.server.request(prompt, context.config.long_tokens))
        yield connections


async def _read_events(connection: Connection, limit_s: float) -> int:
    """Read until the stream is under way, and return the number of events. Raises `LoadError` if it ends before."""
    n_events = 0
    while n_events < _EVENTS_FIRST:
        raw = await connection.read_some(limit_s)
        if not raw:
            raise LoadError(f"an answer that should go on ended after {n_events} events")
        n_events += raw.count(b"data: ")
    return n_events


FIN = Question("fin", "Does the server end a stream when its client closes the connection?", _ask_fin)
RST = Question("rst", "And when its client resets the connection?", _ask_rst)
PLAIN = Question("plain-disconnect", "And an answer that is not streamed?", _ask_plain)
WAITING = Question("waiting-disconnect", "And requests whose clients leave before the first token?", _ask_waiting)
WASTE = Question("waste", "How much is computed for clients that have left?", _ask_waste)
