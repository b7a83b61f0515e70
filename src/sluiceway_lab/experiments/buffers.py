"""Measures how much the buffers before a reader absorb that never reads, before the server notices."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.experiments.gauge import tokens_of
from sluiceway_lab.experiments.readers import Habit, read, stalled
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer

_PADS = (0, 1024, 16 * 1024, 64 * 1024)
_SMOKE_PADS = (16 * 1024,)
_USUAL, _NARROW = "usual", "narrow"
_LIMITS: dict[str, tuple[str, ...]] = {"ours": (), "the system's": ("--unsent-bytes", "0")}
_MANY_TOKENS, _TOKENS = 8000, 2000
"""Tokens of the fake model, and of a model that computes. With the system's limits, all may be absorbed."""
_SAMPLE_TOKENS = 9
_POLL_S = 0.1
_ID_LENGTH = 32
"""The length of the ids that the server makes. Every event has the id."""
_STILL_S = 0.5
"""After such a pause, the buffers take nothing more."""
_LIMIT_S = 60.0
_TENS = 100
_QUARTER_BYTES = 250_000
_BYTES, _EVENTS, _EVENT, _OURS = "absorbed_bytes", "absorbed_events", "event_bytes", "events_on_our_side"


async def _run(lab: Lab) -> list[Verdict]:
    n_tokens = _MANY_TOKENS if lab.is_fake else _TOKENS
    for n_pad, limits in itertools.product(lab.pick(_PADS, _SMOKE_PADS), lab.pick(tuple(_LIMITS), ("ours",))):
        async with lab.server(*_LIMITS[limits], pad_bytes=n_pad) as server:
            event_bytes = await _event_bytes(server)
            for reader in lab.pick((_USUAL, _NARROW), (_USUAL,)):
                figures = {_EVENT: event_bytes} | await _absorbed(server, n_tokens, event_bytes, reader)
                lab.note(server.name, f"{limits} limits, {reader} reader, {n_pad} bytes more", figures)
    return verdicts(lab)


async def _event_bytes(server: TargetServer) -> float:
    """Return the bytes of one more token in an answer, with its framing."""
    short = await read(server.target, server.request("once", 1), Habit())
    longer = await read(server.target, server.request("once", _SAMPLE_TOKENS), Habit())
    return (longer.n_bytes - short.n_bytes) / (_SAMPLE_TOKENS - 1)


async def _absorbed(server: TargetServer, n_tokens: int, event_bytes: float, reader: str) -> dict[str, float]:
    """Measure what the server can write to a stopped reader, and how much of that the reader's kernel has received.

    Raises `LoadError` if the buffers still absorb after a minute.
    """
    stream_id = reader.rjust(_ID_LENGTH, "0")
    request = server.request("once", n_tokens, sluiceway={"stream_id": stream_id, "slow_client": "unbounded"})
    async with stalled(server.target, request, is_narrow=reader == _NARROW) as connection:
        n_written, grown_s, started_s = 0, time.perf_counter(), time.perf_counter()
        while (now_s := time.perf_counter()) - started_s < _LIMIT_S:
            n_generated, n_delivered = await tokens_of(server, stream_id)
            if n_delivered > n_written:
                n_written, grown_s = n_delivered, now_s
            if n_written == n_tokens or (n_generated > n_written and now_s - grown_s > _STILL_S):
                absorbed_bytes = n_written * event_bytes
                n_ours = max(0.0, absorbed_bytes - connection.unread_bytes) / event_bytes
                return {_EVENTS: float(n_written), _BYTES: absorbed_bytes, _OURS: n_ours}
            await asyncio.sleep(_POLL_S)
    raise LoadError(f"a reader that does not read was written to for {_LIMIT_S:g} s")


def verdicts(lab: Lab) -> list[Verdict]:
    found = {run.scenario: run.figures for run in lab.runs}
    ours = {place: figures for place, figures in found.items() if place.startswith("ours")}
    most = max(figures[_BYTES] for place, figures in ours.items() if _USUAL in place)
    return [
        Verdict(
            "a usual reader absorbs less than a quarter of a megabyte, with events of any length",
            most < _QUARTER_BYTES,
            f"at most {most / 1e3:.0f} kB",
        ),
        _felt("the server notices a stopped reader with a small buffer after tens of ordinary events", _EVENTS, ours),
        _felt("on this side of the reader's kernel, tens of ordinary events wait at most", _OURS, ours),
        _by_limits(found),
    ]


def _felt(hypothesis: str, figure: str, found: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge all readers of ordinary events for which the figure is meaningful."""
    ordinary = {
        place: figures
        for place, figures in found.items()
        if place.endswith(" 0 bytes more") and (figure == _OURS or _NARROW in place)
    }
    counted = "; ".join(
        f"{figures[figure]:.0f} events of {figures[_EVENT]:.0f} bytes ({place.split(', ')[1]})"
        for place, figures in ordinary.items()
    )
    stood = all(figures[figure] < _TENS for figures in ordinary.values()) if ordinary else None
    return Verdict(hypothesis, stood, counted or "no ordinary events in this run")


def _by_limits(found: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Compare each run under our limit of unsent bytes with the same run without it."""
    pairs = {
        place.removeprefix("ours limits, "): (figures[_BYTES], found[other][_BYTES])
        for place, figures in found.items()
        if place.startswith("ours") and (other := place.replace("ours", "the system's", 1)) in found
    }
    return Verdict(
        "a limit on unsent bytes in the kernel reduces it",
        all(ours < systems for ours, systems in pairs.values()) if pairs else None,
        "; ".join(
            f"{place}: {ours / 1e3:.0f} kB, {systems / 1e3:.0f} without" for place, (ours, systems) in pairs.items()
        )
        or "not compared in this run",
    )


EXPERIMENT = Experiment(
    name="buffers",
    question="How much does a reader that never reads absorb before a write blocks?",
    run=_run,
    columns=(
        Column(_EVENT, "event bytes", digits=0),
        Column(_EVENTS, "events written", digits=0),
        Column(_BYTES, "absorbed kB", 1e-3, 0),
        Column(_OURS, "events on our side", digits=0),
    ),
    drawn=(_BYTES,),
    not_shown=(
        "the reader's own kernel has a share in it that no server sets: the narrow reader has a buffer of 4 kB and "
        "short segments, the usual one what the system gives it",
        "real networks, where what is under way is in it too",
    ),
)
