"""Asks whether a connection serves several requests, sent one after the other or together."""

from __future__ import annotations

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, by_faults
from sluiceway_lab.load.client import HungUp, LoadError, Reply, dial, keeping
from sluiceway_lab.load.transcript import read_plain, read_transcript

_TOKENS = 8
_ORDERS = {"a plain answer": (False, True), "a stream": (True, False)}
"""Whether the first and the second answer are streamed."""


class _Closes(LoadError):
    """The server announces that it will close. It may do so, but every request then needs a new connection."""


async def _ask(context: CheckContext) -> Finding:
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
    return by_faults(
        faults, blemishes, "a plain answer, a stream, and two requests sent together, on one connection each"
    )


async def _in_turn(context: CheckContext, is_streamed: tuple[bool, bool]) -> None:
    """Send two requests on one connection, each streamed or not. Raises `LoadError`.

    A server that closes without `Connection: close` breaks a rule (https://www.rfc-editor.org/rfc/rfc9112#section-9.6).
    But a client must expect a close at any time, and most do.
    """
    async with dial(context.server.target) as connection:
        for prompt, is_stream in zip(context.prompts("connections", 2), is_streamed, strict=True):
            request = context.server.request(prompt, _TOKENS) if is_stream else context.plain_request(prompt, _TOKENS)
            connection.send(keeping(request))
            reply = _kept(await connection.read_reply(context.limit_s))
            read_transcript(reply) if is_stream else read_plain(reply)


async def _sent_together(context: CheckContext) -> bool:
    """Send a completion and the list of models together. Return True if the answers come in that order.

    Raises `LoadError`.
    """
    (prompt,) = context.prompts("connections/together", 1)
    target = context.server.target
    async with dial(target) as connection:
        connection.send(keeping(context.plain_request(prompt, _TOKENS)) + keeping(target.request("GET", "/v1/models")))
        answers = [await connection.read_reply(context.limit_s), await connection.read_reply(context.limit_s)]
    return b'"choices"' in answers[0].body and b'"choices"' not in answers[1].body


def _kept(reply: Reply) -> Reply:
    """Raises `_Closes` if the server announces that it will close."""
    if reply.headers.get("connection", "").lower() == "close":
        raise _Closes("the server closes after each answer")
    return reply


QUESTION = Question("connections", "Can a connection be used again, after a stream too?", _ask)
