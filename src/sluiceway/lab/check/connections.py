"""Several requests on one connection: one after the other, and sent together."""

from __future__ import annotations

from sluiceway.lab.check.line import dial, keeping
from sluiceway.lab.check.peer import Peer
from sluiceway.lab.check.question import Finding, Question, by_faults
from sluiceway.lab.check.transcript import read_plain, read_transcript
from sluiceway.lab.load.replies import LoadError, Reply

_TOKENS = 8


async def _ask(peer: Peer) -> Finding:
    faults, blemishes = [], []
    try:
        await _in_turn(peer)
    except LoadError as fault:
        faults.append(f"a second request on a connection: {fault}")
    try:
        if not await _sent_together(peer):
            faults.append("two requests sent together were answered in the wrong order")
    except LoadError as fault:
        blemishes.append(f"two requests sent together: {fault}")
    return by_faults(
        faults, blemishes, "a plain answer, a stream, and two requests sent together, on one connection each"
    )


async def _in_turn(peer: Peer) -> None:
    """A plain answer, a stream, and a plain one. Raises `LoadError`."""
    first, second, third = peer.prompts("connections", 3)
    async with dial(peer.subject.target) as line:
        await line.send(keeping(peer.plain_request(first, _TOKENS)))
        read_plain(_kept(await line.read_reply(peer.limit_s)))
        await line.send(keeping(peer.subject.request(second, _TOKENS)))
        read_transcript(_kept(await line.read_reply(peer.limit_s)))
        await line.send(keeping(peer.plain_request(third, _TOKENS)))
        read_plain(await line.read_reply(peer.limit_s))


async def _sent_together(peer: Peer) -> bool:
    """Whether the first answer is the first one's: a longer one, then the list of models. Raises `LoadError`."""
    (prompt,) = peer.prompts("connections/together", 1)
    target = peer.subject.target
    async with dial(target) as line:
        await line.send(keeping(peer.plain_request(prompt, _TOKENS)) + keeping(target.request("GET", "/v1/models")))
        answers = [await line.read_reply(peer.limit_s), await line.read_reply(peer.limit_s)]
    return b'"choices"' in answers[0].body and b'"choices"' not in answers[1].body


def _kept(reply: Reply) -> Reply:
    """Raises `LoadError` where the server says that it will close: its right, but it costs a connection each time."""
    if reply.headers.get("connection", "").lower() == "close":
        raise LoadError("the server closes after each answer")
    return reply


QUESTION = Question("connections", "Can a connection be used again, after a stream too?", _ask)
