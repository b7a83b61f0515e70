"""Compares streamed answers with whole answers to the same prompts: ids, text, usage, and the form of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from httpx_sse import EventSource

from sluiceway_lab.experiments import native
from sluiceway_lab.experiments.experiment import Experiment, Lab, counted
from sluiceway_lab.load.client import Reply, record
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_PROMPTS, _SMOKE_PROMPTS = 40, 8
_TOKENS, _SMOKE_TOKENS = 32, 8
_TOGETHER = 8
_RESUMABLE = {"resumable": True}
"""So that events have ids."""

CLAIMS = {
    "type": "the content type is that of an event stream",
    "identity": "the start event has the id of the header, and each answer has a request id",
    "order": "start comes first, done last, and tokens count from 0",
    "same": "token ids and text are those of the answer in full",
    "account": "usage and the reason of the end are those of the answer in full",
    "last_id": "the last event's id is the number of events",
    "whole": "nothing is left unfinished: the body ends with an event and with the framing of HTTP",
}


async def _run(lab: Lab) -> list[Verdict]:
    n_prompts, n_tokens = lab.pick(_PROMPTS, _SMOKE_PROMPTS), lab.pick(_TOKENS, _SMOKE_TOKENS)
    texts = prompts(lab.seed, "sse", n_prompts)
    async with lab.server() as server:
        pairs: list[tuple[Reply, dict[str, Any]]] = []
        for first in range(0, n_prompts, _TOGETHER):
            few = texts[first : first + _TOGETHER]
            pairs += await asyncio.gather(*(_both(server, text, n_tokens) for text in few))
    held = [judged(reply, full) for reply, full in pairs]
    n_bytes = [native.read_stream(reply).n_bytes / n_tokens for reply, _ in pairs]
    figures = {claim: float(sum(one[claim] for one in held)) for claim in CLAIMS}
    figures |= {"answers": float(n_prompts), "bytes_per_token": sum(n_bytes) / n_prompts}
    lab.note(server.name, "streamed and in full", figures, streams=_TOGETHER)
    spread = Verdict(
        "an event of one token, with an id, takes less than 100 bytes",
        max(n_bytes) < 100,
        f"{min(n_bytes):.0f} to {max(n_bytes):.0f} bytes of body for each token, start and done shared among them",
    )
    found = [counted(CLAIMS[claim], [one[claim] for one in held]) for claim in CLAIMS]
    return [*found, spread, by_another_decoder([reply for reply, _ in pairs])]


async def _both(server: TargetServer, text: str, n_tokens: int) -> tuple[Reply, dict[str, Any]]:
    request = native.stream_request(server, text, n_tokens, **_RESUMABLE)
    reply = (await record(server.target, request)).reply()
    return reply, await native.generate(server, text, n_tokens)


def judged(reply: Reply, full: dict[str, Any]) -> dict[str, bool]:
    """Return which claims hold. Raises `LoadError` for a stream without `done`."""
    streamed = native.read_stream(reply)
    names = [event.event for event in streamed.events]
    tokens, done = streamed.fields("token"), streamed.fields("done")[0]
    start = next(iter(streamed.fields("start")), {})
    return {
        "type": reply.headers.get("content-type", "").partition(";")[0] == "text/event-stream",
        "identity": start.get("id") == reply.headers.get("x-stream-id", "") and bool(reply.headers.get("x-request-id")),
        "order": names == ["start", *["token"] * len(tokens), "done"]
        and [token["index"] for token in tokens if token["id"] is not None] == list(range(len(streamed.token_ids))),
        "same": list(streamed.token_ids) == full["token_ids"] and streamed.text == full["text"],
        "account": (done["usage"], done["reason"]) == (full["usage"], full["reason"]),
        "last_id": streamed.events[-1].last_event_id == str(len(streamed.events)),
        "whole": reply.is_whole and reply.body.endswith(b"\n\n"),
    }


def by_another_decoder(replies: Sequence[Reply]) -> Verdict:
    """Compare with what the package httpx-sse reads from the same bytes."""
    same = []
    for reply in replies:
        response = httpx.Response(200, headers={"content-type": reply.headers["content-type"]}, content=reply.body)
        theirs = [(event.event, event.data, event.id) for event in EventSource(response).iter_sse()]
        ours = [(event.event, event.data, event.last_event_id) for event in native.read_stream(reply).events]
        same.append(theirs == ours)
    return counted("a decoder that is not ours reads the same events", same)


EXPERIMENT = Experiment(
    name="sse",
    question="Is a streamed answer the same as the whole one?",
    run=_run,
    columns=(
        Column("answers", "answers", digits=0),
        *(Column(claim, claim, digits=0) for claim in CLAIMS),
        Column("bytes_per_token", "bytes a token"),
    ),
    drawn=("bytes_per_token",),
    not_shown=("other protocols: their events are read by the test suite with the clients of their makers",),
)
