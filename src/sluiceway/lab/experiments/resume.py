"""Connections are cut at random tokens, and streams go on with `Last-Event-ID`: are they the uncut ones?"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sluiceway.lab.check.line import dial
from sluiceway.lab.experiments.experiment import Experiment, Lab, Verdict
from sluiceway.lab.load.answers import complaint
from sluiceway.lab.load.record import Run
from sluiceway.lab.load.replies import LoadError, parse_reply
from sluiceway.lab.load.scrape import total
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.tables import Column
from sluiceway.lab.load.workload import prompts

_STREAMS, _TOKENS, _CUTS = 50, 64, 4
_SMOKE_STREAMS, _SMOKE_TOKENS = 6, 24
_AT_ONCE = 8
_SILENCE_S = 30.0
_EVENT_END = b"\n\n"
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_HEAD_END = b"\r\n\r\n"
_TEXTS = re.compile(rb'"text":"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Part:
    """What one connection brought: whole events, until the first after the cut or the end of the stream."""

    events: bytes
    status: int
    first_s: float
    """From the request to its first event, or to its end where it has none."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """One stream: its parts in order, then all of it once more, and the same prompt's answer without a cut."""

    parts: Sequence[Part]
    replay: bytes
    uncut: bytes

    @property
    def joined(self) -> bytes:
        return b"".join(part.events for part in self.parts)

    @property
    def n_cuts(self) -> int:
        return len(self.parts) - 1

    @property
    def has_same_bytes(self) -> bool:
        return self.joined == self.replay

    @property
    def has_same_text(self) -> bool:
        return _TEXTS.findall(self.joined) == _TEXTS.findall(self.uncut)

    @property
    def is_in_order(self) -> bool:
        """Whether no event is missing and none came twice."""
        ids = [int(number) for number in _ID.findall(self.joined)]
        return ids == list(range(1, len(ids) + 1))


async def _run(lab: Lab) -> list[Verdict]:
    n_streams = _SMOKE_STREAMS if lab.is_smoke else _STREAMS
    free = asyncio.Semaphore(_AT_ONCE)
    async with lab.server() as subject:

        async def one(number: int, prompt: str) -> Resumed:
            async with free:
                return await _resumed(lab, subject, number, prompt)

        texts = prompts(lab.seed, "resume", n_streams)
        found = await asyncio.gather(*(one(number, text) for number, text in enumerate(texts)))
        kept_bytes = total(await subject.samples(), "sluiceway_stream_backlog_bytes")
        figures = figures_of(found) | {"kept_bytes_per_stream": kept_bytes / n_streams}
        lab.note(Run(subject=subject.name, scenario="cuts", streams=n_streams, repeat=0, figures=figures))
    return verdicts(lab)


async def _resumed(lab: Lab, subject: Subject, number: int, prompt: str) -> Resumed:
    """A stream that is cut several times, each time in another way. It goes on meanwhile."""
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else _TOKENS
    drawing = random.Random(f"{lab.seed}/{number}")
    stream_id = f"lab-resume-{lab.seed}-{number}"
    uncut = await _part(subject, subject.request(prompt, n_tokens), None, resets=False)
    wish = {"stream_id": stream_id, "resumable": True, "on_disconnect": "detach"}
    request = subject.request(prompt, n_tokens, sluiceway=wish)
    parts: list[Part] = []
    last_id = b""
    for n_left in range(_CUTS, -1, -1):
        cut = drawing.randint(0, max(1, n_tokens // _CUTS)) if n_left else None
        parts.append(await _part(subject, request, cut, resets=drawing.random() < 0.5))
        last_id = (_ID.findall(parts[-1].events) or [last_id])[-1]
        request = _twin(subject, stream_id, last_id)
    replay = await _part(subject, _twin(subject, stream_id, b""), None, resets=False)
    return Resumed(parts, replay.events, uncut.events)


def _twin(subject: Subject, stream_id: str, last_id: bytes) -> bytes:
    """Goes on after that event; without one, from the beginning."""
    fields = b"\r\nAccept: text/event-stream" + (b"\r\nLast-Event-ID: " + last_id if last_id else b"")
    request = subject.target.request("GET", f"/v1/streams/{stream_id}")
    return request.replace(_HEAD_END, fields + _HEAD_END, 1)


async def _part(subject: Subject, request: bytes, cut: int | None, *, resets: bool) -> Part:
    """Reads until it has so many events, or to the end. Raises `LoadError` for a refusal."""
    started_s, first_s, raw = time.perf_counter(), 0.0, b""
    async with dial(subject.target) as line:
        await line.send(request)
        while cut is None or _HEAD_END not in raw or raw.count(b"data: ") < cut:
            piece = await line.read_some(_SILENCE_S)
            raw += piece
            if not first_s and (b"data: " in raw or not piece):
                first_s = time.perf_counter() - started_s
            if not piece:
                break
        if resets:
            line.reset()
    reply = parse_reply([(0.0, raw)])
    if reply.status not in (200, 204):
        raise LoadError(f"the server refused ({reply.status}): {complaint(reply.body)}")
    end = reply.body.rfind(_EVENT_END) + len(_EVENT_END)
    return Part(reply.body[:end] if _EVENT_END in reply.body else b"", reply.status, first_s)


def figures_of(found: Sequence[Resumed]) -> dict[str, float]:
    resumptions = [part for one in found for part in one.parts[1:]]
    return {
        "cuts": sum(one.n_cuts for one in found),
        "cuts_after_end": sum(part.status == 204 for part in resumptions),
        "same_bytes": sum(one.has_same_bytes for one in found),
        "same_text": sum(one.has_same_text for one in found),
        "in_order": sum(one.is_in_order for one in found),
        "first_event_s": statistics.median(part.first_s for part in resumptions),
    }


def verdicts(lab: Lab) -> list[Verdict]:
    ((figures, n_streams),) = ((run.figures, run.streams) for run in lab.runs)
    cut = f"of {n_streams} streams, cut {figures['cuts']:.0f} times"
    return [
        Verdict(
            "what the parts come to is the stream that the server has kept, byte by byte",
            figures["same_bytes"] == n_streams,
            f"{figures['same_bytes']:.0f} {cut}",
        ),
        Verdict(
            "no event is missing and none comes twice",
            figures["in_order"] == n_streams,
            f"{figures['in_order']:.0f} {cut}",
        ),
        Verdict(
            "the text is that of the same request without a cut",
            figures["same_text"] == n_streams,
            f"{figures['same_text']:.0f} {cut}",
        ),
    ]


EXPERIMENT = Experiment(
    name="resume",
    question="A stream is cut at random tokens and gone on with: is it the uncut one?",
    run=_run,
    columns=(
        Column("cuts", "cuts", digits=0),
        Column("cuts_after_end", "after the end", digits=0),
        Column("same_bytes", "same bytes", digits=0),
        Column("in_order", "in order", digits=0),
        Column("same_text", "same text", digits=0),
        Column("first_event_s", "resumed ms, p50", 1e3),
        Column("kept_bytes_per_stream", "kept kB a stream", 1e-3),
    ),
    drawn=("first_event_s", "kept_bytes_per_stream"),
    not_shown=(
        "other clients than this one: a browser's EventSource, and a second library",
        "a proxy between them",
        "streams of which a part is not kept any more",
    ),
)
