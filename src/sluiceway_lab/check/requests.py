"""Asks how requests are answered: on one connection, invalid, too many, and while the server stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections import Counter
from typing import Any

import msgspec

from sluiceway_lab.check.question import CheckContext, Finding, Question, Silence, by_faults, grouped, unknown
from sluiceway_lab.load.client import Connection, HungUp, LoadError, Outcome, Recording, Reply, dial, keeping
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.target_server import COMPLETIONS
from sluiceway_lab.load.transcript import read_plain, read_transcript
from sluiceway_lab.load.workload import long_prompt

_TOKENS = 8
_ORDERS = {"a plain answer": (False, True), "a stream": (True, False)}
"""Whether the first and the second answer are streamed."""
_TOO_MANY_WORDS = 150_000
_BURST_TOKENS = (4, 256)
_BUDGET_S = 20.0
"""How long all requests of a burst may take together, if eight run at the speed of one."""
_BATCHED = 8
_LATE = 0.8
"""A share of the time limit. If an answer comes later than that, the queue was still moving."""
SERVED, REFUSED, WAITED = "served", "refused", "waited without an answer"
_WITHOUT_TIME = "refused without retry-after"
_STREAM_ERROR = "an error in the stream"
_DRAINED = 4
_SETTLED_READS = 4
_POLL_S = 0.01
_NOTICE_S = 0.5
"""How long the server may need to notice a signal."""
_NO_ANSWER = "no answer from"


class _Closes(LoadError):
    """The server announces that it will close. It may do so, but every request then needs a new connection."""


async def _ask_connections(context: CheckContext) -> Finding:
    faults, blemishes = [], []
    for what, (first, second) in _ORDERS.items():
        try:
            await _in_turn(context, is_streamed=(first, second))
        except (HungUp, _Closes) as fault:
            blemishes.append(f"a request after {what}: {fault}")
        except LoadError as fault:
            faults.append(f"a request after {what}: {fault}")
    try:
        if not await _sent_together(context):
            faults.append("two requests sent together were answered in the wrong order")
    except LoadError as fault:
        blemishes.append(f"two requests sent together: {fault}")
    praise = "a plain answer, a stream, and two requests sent together, on one connection each"
    return by_faults(faults, blemishes, praise)


async def _in_turn(context: CheckContext, is_streamed: tuple[bool, bool]) -> None:
    """Send two requests on one connection, each streamed or not. Raises `LoadError`.

    A server that closes without `Connection: close` breaks a rule (https://www.rfc-editor.org/rfc/rfc9112#section-9.6).
    But a client must expect a close at any time, and most do.
    """
    async with dial(context.server.target) as connection:
        for prompt, is_stream in zip(context.prompts("connections", 2), is_streamed, strict=True):
            request = context.server.request(prompt, _TOKENS) if is_stream else context.plain_request(prompt, _TOKENS)
            connection.send(keeping(request))
            reply = await connection.read_reply(context.limit_s)
            if reply.headers.get("connection", "").lower() == "close":
                raise _Closes("the server closes after each answer")
            read_transcript(reply) if is_stream else read_plain(reply)


async def _sent_together(context: CheckContext) -> bool:
    """Send a completion and the list of models together. Return True if the answers come in that order.

    Raises `LoadError`.
    """
    (prompt,) = context.prompts("connections/together", 1)
    target = context.server.target
    both = keeping(context.plain_request(prompt, _TOKENS)) + keeping(target.request("GET", "/v1/models"))
    async with dial(target, both) as connection:
        answers = [await connection.read_reply(context.limit_s) for _ in range(2)]
    return b'"choices"' in answers[0].body and b'"choices"' not in answers[1].body


async def _ask_bad_requests(context: CheckContext) -> Finding:
    found: dict[Grade, list[tuple[str, str]]] = {Grade.FAIL: [], Grade.WARN: []}
    wrongs, n_lost = _wrongs(context.server.model), 0
    async with contextlib.AsyncExitStack() as opened:
        kept: Connection | None = None
        for what, field, body in wrongs:
            reply = None if kept is None else await _reply(context, kept, body)
            if not isinstance(reply, Reply):  # the first request, or the connection was closed after the last one
                n_lost += kept is not None
                kept = await opened.enter_async_context(dial(context.server.target))
                reply = await _reply(context, kept, body)
            if isinstance(reply, Reply):
                said = judge_refusal(field, reply)
            else:
                said, kept = (Grade.FAIL, str(reply)), None
            if said is not None:
                found[said[0]].append((said[1], what))
    (prompt,) = context.prompts("bad-requests", 1)
    await context.plain(prompt, 1)
    lost = [f"{n_lost} times the connection was closed after a refusal"] if n_lost else []
    praise = f"{len(wrongs)} wrong requests on one connection, each refused with a reason"
    return by_faults(grouped(found[Grade.FAIL]), grouped(found[Grade.WARN]) + lost, praise)


async def _reply(context: CheckContext, connection: Connection, body: bytes) -> Reply | LoadError:
    connection.send(keeping(context.server.target.request("POST", COMPLETIONS, body)))
    try:
        return await connection.read_reply(context.limit_s)
    except LoadError as fault:
        return fault


def _wrongs(model: str) -> list[tuple[str, str | None, bytes]]:
    """Return what is wrong, what the reason should name (None: anything), and the body."""
    fine = {"model": model, "prompt": "Once", "max_tokens": 1, "temperature": 0}
    too_long = long_prompt(0, "too-long", _TOO_MANY_WORDS)
    bodies: list[tuple[str, str | None, Any]] = [
        ("a list", None, [1, 2]),
        ("no prompt", "prompt", {name: value for name, value in fine.items() if name != "prompt"}),
        ("max_tokens that is a word", "max_tokens", fine | {"max_tokens": "many"}),
        ("temperature that is a list", "temperature", fine | {"temperature": [1]}),
        ("temperature -1", "temperature", fine | {"temperature": -1}),
        ("an unknown model", "no/such-model", fine | {"model": "no/such-model"}),
        ("a prompt that is too long", None, fine | {"prompt": too_long}),
    ]
    encoded = [(what, field, msgspec.json.encode(body)) for what, field, body in bodies]
    return [("broken JSON", None, b'{"model": '), *encoded]


def judge_refusal(field: str | None, reply: Reply) -> tuple[Grade, str] | None:
    """Return what is wrong with the answer to an invalid request; None if nothing is."""
    if reply.status >= 500:
        return Grade.FAIL, f"status {reply.status}, as if it were the server's fault"
    if reply.status < 400:
        return Grade.WARN, "served as if nothing were wrong"
    error = _error(reply.body)
    if error is None:
        return Grade.FAIL, f"status {reply.status} without a JSON error"
    if field is not None and field not in f"{error.get('param')} {error.get('message')}":
        return Grade.WARN, "the reason does not name the field"
    return None


def _error(body: bytes) -> dict[str, Any] | None:
    """Return the error, in OpenAI's envelope or without it, as some servers send it."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    error = decoded.get("error", decoded) if isinstance(decoded, dict) else None
    return error if isinstance(error, dict) and error.get("message") else None


async def _ask_overload(context: CheckContext) -> Finding:
    started_s = time.perf_counter()
    # At most half of the files that this process may open.
    n = min(context.config.burst, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    n_tokens = answer_tokens(n, context.pace.itl_s)
    requests = [context.server.request(f"Number {place}:", n_tokens) for place in range(n)]
    outcomes = await asyncio.gather(*map(context.attempt, requests))
    (prompt,) = context.prompts("overload/after", 1)
    await context.plain(prompt, 1)
    last_s = max((outcome.ended_s for outcome in outcomes if isinstance(outcome, Recording)), default=0.0)
    is_moving = last_s - started_s > _LATE * context.limit_s
    return judge_overload([outcome_of(outcome) for outcome in outcomes], is_moving=is_moving)


def answer_tokens(n: int, itl_s: float) -> int:
    """Return an answer length that lets a queue build up."""
    least, most = _BURST_TOKENS
    return min(most, max(least, int(_BUDGET_S * _BATCHED / (n * max(itl_s, 1e-6)))))


def judge_overload(outcomes: list[str], *, is_moving: bool) -> Finding:
    """`is_moving`: other requests were still answered when the last one gave up, so it was only a long queue."""
    counted = Counter(outcomes)
    n_served, n_untimed = counted.pop(SERVED, 0), counted.pop(_WITHOUT_TIME, 0)
    n_refused = counted.pop(REFUSED, 0) + n_untimed
    n_waited = counted.pop(WAITED, 0) if is_moving else 0
    requests = f"of {len(outcomes)} simultaneous requests"
    faults = [f"{n} {requests}: {what}" for what, n in counted.items()]
    if not n_served:
        faults.append("none was served")
    blemishes = [f"{n_untimed} of {n_refused} refusals had no retry-after"] if n_untimed else []
    if n_waited:
        blemishes.append(f"{n_waited} {requests} got nothing in time, while others were served")
    refusals = f"and {n_refused} refused with retry-after" if n_refused else "and none was refused"
    figures = {"served": float(n_served), "refused": float(n_refused)}
    return by_faults(faults, blemishes, f"{requests} {n_served} were served {refusals}", figures)


def outcome_of(outcome: Outcome) -> str:
    """Return a word or a sentence for what became of a request."""
    try:
        if isinstance(outcome, LoadError):
            raise outcome
        reply = outcome.reply()
        if reply.status in (429, 503):
            return REFUSED if "retry-after" in reply.headers else _WITHOUT_TIME
        said = read_transcript(reply)
    except Silence:
        return WAITED
    except LoadError as fault:
        return str(fault)
    if said.errors:
        return _STREAM_ERROR
    return SERVED if said.finish_reasons and said.is_whole else "the answer broke off"


async def _ask_drain(context: CheckContext) -> Finding:
    if context.drain_pid is None:
        return unknown("it stops the server, so it is asked only with --drain-pid")
    target = context.server.target
    texts, (late_text,) = context.prompts("drain", _DRAINED), context.prompts("drain/late", 1)
    streams = [await Connection.open(target, context.server.request(text, context.config.tokens * 2)) for text in texts]
    while any(stream.n_reads < _SETTLED_READS and not stream.is_over for stream in streams):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    os.kill(context.drain_pid, signal.SIGTERM)
    signalled_s = time.perf_counter()
    await asyncio.sleep(_NOTICE_S)
    late = outcome_of(await context.attempt(context.server.request(late_text, 1)))
    ends = [outcome_of(await _end_of(stream, context.limit_s)) for stream in streams]
    return judge_drain(ends, late, await _gone_s(context, signalled_s))


def judge_drain(ends: list[str], late: str, gone_s: float | None) -> Finding:
    """`gone_s` is the time from the signal until the server stopped listening."""
    n, n_whole, n_errors = len(ends), ends.count(SERVED), ends.count(_STREAM_ERROR) + ends.count(REFUSED)
    n_cut = n - n_whole - n_errors
    faults = [f"{n_cut} of {n} streams were cut off without an error"] if n_cut else []
    if gone_s is None:
        faults.append("the server continued to listen")
    blemishes = []
    if late == SERVED:
        blemishes.append("a new request was still served")
    elif late != REFUSED and not late.startswith(_NO_ANSWER):
        blemishes.append(f"the answer to a new request: {late}")
    praise = (
        f"{n_whole} of {n} running streams ended whole, {n_errors} with an error; a new request was refused; "
        f"the server stopped listening {gone_s or 0.0:.1f} s after the signal"
    )
    return by_faults(faults, blemishes, praise, {} if gone_s is None else {"gone_s": gone_s})


async def _end_of(stream: Connection, limit_s: float) -> Outcome:
    try:
        return await stream.end(limit_s)
    except LoadError as fault:
        return fault


async def _gone_s(context: CheckContext, signalled_s: float) -> float | None:
    """Return the seconds until the server stops listening; None if it still listens at the limit."""
    while (now_s := time.perf_counter()) - signalled_s < context.limit_s:
        try:
            (await Connection.open(context.server.target)).finish()
        except LoadError:
            return now_s - signalled_s
        await asyncio.sleep(_POLL_S)
    return None


CONNECTIONS = Question("connections", "Can a connection be used again, after a stream too?", _ask_connections)
BAD_REQUESTS = Question(
    "bad-requests", "Is an invalid request refused with a reason, and the connection kept?", _ask_bad_requests
)
OVERLOAD = Question("overload", "Is each of too many requests served or refused properly?", _ask_overload)
DRAIN = Question("drain", "Do running streams end well when the server stops on a signal?", _ask_drain)
