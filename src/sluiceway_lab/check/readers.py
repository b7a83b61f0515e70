"""Asks what readers notice: those that wait, those next to a stopped reader, and those that leave.

When a client leaves, the time until the server is idle is compared with the time that the rest of the answer would have
taken. A server that continues for most of that time has not noticed. These questions need the server's own gauges.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from sluiceway_lab.check.question import FIRST_LOOKS_S, CheckContext, Finding, Question, Silence, graded, unknown
from sluiceway_lab.load.client import Connection, LoadError, Recording, dial, parse_reply
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import read_transcript
from sluiceway_lab.load.workload import long_prompt

_FEW_ITLS = 3.0
_EARLY = 0.5
_FEW = 2
"""How many times more streams wait than in other questions."""
_ALL_REFUSED = "none of the long prompts was served"
_PATIENT_S = 15.0
_LONG_ENOUGH_S = 20.0
_MOST_WAITING = 256
"""Proxies cut a silent connection after 30 to 60 seconds. A comment every 15 seconds is safe."""
_ROUNDS = 2
_PATIENCE_S = 2.0
_PATIENCE = 10.0
"""The others hang if they take this many times as long as without the stopped reader, plus some seconds."""
_HARMLESS, _BEARABLE = 1.5, 4.0
_MUCH_BYTES = 64e6
_FILL_S = 10.0
_EVENTS_FIRST = 8
_LEAVERS = 4
_SHORTEST_S = 0.5
"""If the rest takes less time, the question is not judged: the time of a scrape is part of the measurement."""
_PROMPT, _LATE = 0.25, 0.6
"""Limits, as shares of what the rest of the answer would have taken."""
_QUIET_S = 1.5
"""Some servers check their connections once a second while they wait for an event. This is longer."""

WHOLE, FAILED, CUT, SILENT = "got its whole answer", "got an error", "was cut off without an error", "got no end"


async def _ask_headers(context: CheckContext) -> Finding:
    try:
        waiting = await _waiting_streams(context, "first-byte", _FEW * context.config.streams)
    except Silence as fault:
        return unknown(f"no stream to look at: {fault}")
    if not waiting:
        return unknown(_ALL_REFUSED)
    one = waiting[0]
    return judge_headers(one.reads[0][0] - one.started_s, _first_token_s(one), context.pace.itl_s)


def judge_headers(headers_s: float, first_token_s: float, itl_s: float) -> Finding:
    """Both times are from before the connection was opened."""
    figures = {"headers_s": headers_s, "first_token_s": first_token_s}
    if first_token_s < _FEW_ITLS * itl_s:
        return unknown(f"the first token of a long prompt came after {first_token_s * 1e3:.0f} ms: too soon to tell")
    share = headers_s / first_token_s
    sentence = f"headers came after {headers_s * 1e3:.0f} ms, at {share:.0%} of the wait for the first token"
    return Finding(Grade.PASS if share <= _EARLY else Grade.WARN, sentence, figures)


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
    return judge_silence(longest_s, sum(read_transcript(one.reply()).n_comments for one in waiting))


def judge_silence(longest_s: float, n_comments: int) -> Finding:
    figures = {"longest_silence_s": longest_s, "comments": float(n_comments)}
    if n_comments:
        return Finding(Grade.PASS, f"{n_comments} comments; never silent for more than {longest_s:.1f} s", figures)
    if longest_s < _PATIENT_S:
        return Finding(Grade.UNKNOWN, f"no stream was silent for longer than {longest_s:.1f} s", figures)
    return Finding(Grade.WARN, f"a waiting stream was silent for {longest_s:.1f} s, without a comment", figures)


async def _waiting_streams(context: CheckContext, name: str, n: int) -> list[Recording]:
    """Send long prompts at the same time, so that some wait.

    Return the streams that were served, the longest wait first.
    """
    names = [f"check/{name}/{place}" for place in range(n)]
    texts = [long_prompt(context.config.seed, one, context.config.prompt_words) for one in names]
    requests = [context.server.request(text, context.config.tokens // 4) for text in texts]
    recordings = await asyncio.gather(*map(context.record, requests))
    served = [one for one in recordings if one.reply().status == 200]
    return sorted(served, key=_first_token_s, reverse=True)


def _first_token_s(one: Recording) -> float:
    deltas = read_transcript(one.reply()).deltas
    return deltas[0].at_s - one.started_s if deltas else 0.0


def _longest_silence_s(one: Recording) -> float:
    times = [one.started_s, *(at_s for at_s, _ in one.reads)]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the stream of the stopped reader ended. The memory growth is None if it cannot be measured."""

    end: str
    unread_bytes: int
    growth_bytes: int | None


async def _ask_slow(context: CheckContext) -> Finding:
    """Compare healthy streams next to a stopped reader with the same streams next to a healthy one."""
    free_s, hindered_s = [], []
    for place in range(_ROUNDS):
        async with _long_reader(context, f"slow/free/{place}", is_stopped=False) as connection:
            free_s.append(await _healthy_s(context, f"slow/free/{place}", None))
            connection.reset()
        if context.server.kind is not None:
            await context.seconds_until_idle(context.limit_s)
        before_bytes = _rss_bytes(context)
        async with _long_reader(context, f"slow/stopped/{place}", is_stopped=True) as connection:
            try:
                limit_s = _PATIENCE * min(free_s) + _PATIENCE_S
                hindered_s.append(await _healthy_s(context, f"slow/stopped/{place}", limit_s))
            except LoadError as fault:
                connection.reset()
                return Finding(Grade.FAIL, f"next to a stopped reader, the others failed: {fault}")
            growth_bytes = _rss_bytes(context) - before_bytes if context.server.processes else None
            connection.resume()
            stopped = Stopped(*await _end_of(connection, context.limit_s), growth_bytes)
    return judge_slow(context.config.streams - 1, min(hindered_s) / min(free_s), stopped)


def judge_slow(n_others: int, ratio: float, stopped: Stopped) -> Finding:
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


@contextlib.asynccontextmanager
async def _long_reader(context: CheckContext, name: str, *, is_stopped: bool) -> AsyncIterator[Connection]:
    """Request a long answer, and wait until half of it is generated. The buffers before the reader are full by then."""
    (prompt,) = context.prompts(f"{name}/long", 1)
    async with dial(context.server.target, is_narrow=True) as connection:
        if is_stopped:
            connection.stall()
        connection.send(context.server.request(prompt, context.config.long_tokens))
        await asyncio.sleep(min(_FILL_S, context.config.long_tokens * context.pace.itl_s / 2))
        yield connection


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
            end = FAILED
    return end, len(raw)


def _rss_bytes(context: CheckContext) -> int:
    return sum(used.rss_bytes for used in context.server.usages().values())


@dataclass(frozen=True, slots=True)
class _Leaving:
    """How clients leave: which way in turn, and when."""

    name: str
    ways: tuple[Callable[[Connection], None], ...]
    per_stream: int = 0
    """How many clients leave, for each stream of other questions; 0 is one client."""
    is_streamed: bool = True
    """A server writes nothing while it computes an answer that is not streamed, so it must watch the connection."""
    reads_first: bool = True
    """True if the client reads some events first. Otherwise it leaves as soon as the server computes."""

    async def ask(self, context: CheckContext) -> Finding:
        n, n_tokens = self.per_stream * context.config.streams or 1, context.config.long_tokens
        async with _under_way(context, self.name, n, is_streamed=self.is_streamed) as connections:
            n_read = 0
            if self.reads_first:
                n_read = await _read_events(connections[0], context.limit_s)
            else:
                await context.until_busy()
            for connection, leave in zip(connections, itertools.cycle(self.ways), strict=False):
                leave(connection)
            rest_s = (n_tokens - n_read) * context.pace.itl_s
            idle_s = await context.seconds_until_idle(context.limit_s, quiet_s=quiet_within(rest_s))
            return judge_left(n, idle_s, rest_s, context.limit_s)


async def _ask_waste(context: CheckContext) -> Finding:
    """Compare with the tokens that the server has counted. If probes refresh its gauges, their tokens count too."""
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


def quiet_within(rest_s: float) -> float:
    """Return how long to pause between two looks, so that a server that notices in a pause passes; 0: do not pause."""
    left_s = _PROMPT * rest_s - FIRST_LOOKS_S
    return _QUIET_S if left_s > _QUIET_S else 0.0


def judge_left(n: int, idle_s: float | None, rest_s: float, limit_s: float) -> Finding:
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


@contextlib.asynccontextmanager
async def _under_way(
    context: CheckContext, name: str, n: int, *, is_streamed: bool = True
) -> AsyncIterator[Sequence[Connection]]:
    """Request long answers."""
    ask = context.server.request if is_streamed else context.plain_request
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(dial(context.server.target)) for _ in range(n)]
        for connection, prompt in zip(connections, context.prompts(name, n), strict=True):
            connection.send(ask(prompt, context.config.long_tokens))
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


def _watched(name: str, asks: str, ask: Callable[[CheckContext], Awaitable[Finding]]) -> Question:
    """Make a question that is asked only of an idle server whose gauges are known."""

    async def ask_if_idle(context: CheckContext) -> Finding:
        if context.server.kind is None:
            return unknown("the server has no gauges that are known here (/metrics), so it is unknown when it is idle")
        if await context.seconds_until_idle(context.limit_s) is None:
            return unknown("the server was busy before anything was asked: other clients use it")
        return await ask(context)

    return Question(name, asks, ask_if_idle)


HEADERS = Question(
    "first-byte", "Do the headers of a stream come when it is accepted, before its first token?", _ask_headers
)
SILENCE = Question("silence", "Does a stream that waits long send comments, so that no proxy cuts it?", _ask_silence)
SLOW_READER = Question("slow-reader", "What do other readers notice when one stops reading?", _ask_slow)
FIN = _watched(
    "fin",
    "Does the server end a stream when its client closes the connection?",
    _Leaving("fin", (Connection.finish,)).ask,
)
RST = _watched("rst", "And when its client resets the connection?", _Leaving("rst", (Connection.reset,)).ask)
PLAIN = _watched(
    "plain-disconnect",
    "And an answer that is not streamed?",
    _Leaving("plain", (Connection.finish,), is_streamed=False, reads_first=False).ask,
)
WAITING = _watched(
    "waiting-disconnect",
    "And requests whose clients leave before the first token?",
    _Leaving("waiting", (Connection.reset, Connection.finish), per_stream=4, reads_first=False).ask,
)
WASTE = _watched("waste", "How much is computed for clients that have left?", _ask_waste)
