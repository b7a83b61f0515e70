"""Compares formatting events when they are made, as the product does, with formatting them when they are written."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

from msgspec.structs import replace

from sluiceway_lab.experiments.experiment import Experiment, Lab, counted, values_of
from sluiceway_lab.experiments.gauge import tokens_of
from sluiceway_lab.experiments.readers import stalled
from sluiceway_lab.load.client import LoadError, Target, dial, until
from sluiceway_lab.load.delivery import DeliveryConfig, FormatTime, Spent, SpokenProtocol, WriteBacklog, delivery
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, total
from sluiceway_lab.load.workload import prompts

FORMAT_TIMES: tuple[FormatTime, ...] = ("when made", "when written")
ORDINARY: tuple[SpokenProtocol, ...] = ("chat", "completions", "native")
PADDED, KEPT_UP, SERVER = "padded", "read at once", "padded, the server"
_SLOW = 4
_FAST = 32
_PAD_BYTES = 64 * 1024
_PADDED_TOKENS = 64
_PLAIN_TOKENS = 8000
_FAST_TOKENS = 1000
_SMOKE_TOKENS = 20
_REPEATS = 3
_FAST_REPEATS = 7
_SILENCE_S = 60.0
_LIMIT_S = 60.0
_POLL_S = 0.05
_HELD, _EVENT, _CPU, _SAME = "held_per_reader_bytes", "held_per_event_bytes", "cpu_per_event_s", "is_same"
_LITTLE, _TENTH, _HALF, _NO_MORE, _ALIKE = 1.15, 0.1, 0.5, 1.05, 0.15


async def _run(lab: Lab) -> list[Verdict]:
    name = lab.first.files.name if lab.first.files is not None else ""
    usual = DeliveryConfig(
        format_time="when made",
        spoken="completions",
        model=name,
        n_readers=_SLOW,
        n_tokens=lab.pick(_PLAIN_TOKENS, _SMOKE_TOKENS),
        seed=lab.seed,
    )
    padded = replace(usual, model="x" * _PAD_BYTES, n_tokens=lab.pick(_PADDED_TOKENS, _SMOKE_TOKENS))
    fast = replace(usual, n_readers=_FAST, n_tokens=lab.pick(_FAST_TOKENS, _SMOKE_TOKENS), waits=True)
    for repeat in range(lab.pick(_REPEATS, 1)):
        await _of_the_server(lab, repeat)
        await _both(lab, PADDED, repeat, padded)
        for spoken in lab.pick(ORDINARY, ORDINARY[:1]):
            await _both(lab, spoken, repeat, replace(usual, spoken=spoken))
    for repeat in range(lab.pick(_FAST_REPEATS, 1)):
        await _both(lab, KEPT_UP, repeat, fast)
    return verdicts(lab)


async def _both(lab: Lab, scenario: str, repeat: int, config: DeliveryConfig) -> None:
    """Measure both forms. Which comes first alternates."""
    written: list[list[str]] = []
    for way in FORMAT_TIMES if repeat % 2 == 0 else FORMAT_TIMES[::-1]:
        figures, digests = await _measure(replace(config, format_time=way))
        written.append(digests)
        if len(written) == len(FORMAT_TIMES):
            figures[_SAME] = float(written[0] == written[1])
        lab.note("way out", f"{scenario}, {way}", figures, streams=config.n_readers, repeat=repeat)


async def _measure(config: DeliveryConfig) -> tuple[dict[str, float], list[str]]:
    """Return the figures, and a digest of what each reader received.

    Readers stop reading immediately, unless the server waits for them.
    """
    async with delivery(config) as server:
        begin = asyncio.Event()
        if config.waits:
            begin.set()
        readers = [asyncio.create_task(_digest(server.target, begin)) for _ in range(config.n_readers)]
        try:
            backlog = await server.report(WriteBacklog)
            begin.set()
            spent = await server.report(Spent)
            digests = sorted(await asyncio.gather(*readers))
        finally:
            for reader in readers:
                reader.cancel()
    figures = {_CPU: spent.cpu_s / spent.n_events}
    if not config.waits:
        figures |= {
            _HELD: backlog.grown_bytes / config.n_readers,
            _EVENT: backlog.grown_bytes / max(backlog.n_events, 1),
        }
    return figures, digests


async def _digest(target: Target, begin: asyncio.Event) -> str:
    """Read a whole stream after `begin` is set, and return its digest."""
    digest = hashlib.sha256()
    async with dial(target, is_narrow=not begin.is_set()) as connection:
        connection.stall()
        await begin.wait()
        connection.resume()
        while part := await connection.read_some(_SILENCE_S):
            digest.update(part)
    return digest.hexdigest()


async def _of_the_server(lab: Lab, repeat: int) -> None:
    """Measure by how much the API process of the product grows for readers that read nothing."""
    n_tokens = lab.pick(_PADDED_TOKENS, _SMOKE_TOKENS)
    streams = {f"lab-eager-{number}": prompt for number, prompt in enumerate(prompts(lab.seed, "eager", _SLOW))}
    async with lab.server(pad_bytes=_PAD_BYTES) as server, contextlib.AsyncExitStack() as connections:
        before_bytes = _api_bytes(server)
        for stream_id, prompt in streams.items():
            fields = {"stream_id": stream_id, "slow_client": "unbounded"}
            request = server.request(prompt, n_tokens, sluiceway=fields)
            await connections.enter_async_context(stalled(server.target, request, is_narrow=True))

        async def is_generated() -> bool:
            return all([(await tokens_of(server, stream_id))[0] >= n_tokens for stream_id in streams])

        await until(is_generated, f"{n_tokens} tokens of {_SLOW} streams", limit_s=_LIMIT_S, pause_s=_POLL_S)
        n_held = total(await server.samples(), "sluiceway_stream_backlog_events")
        grown_bytes = _api_bytes(server) - before_bytes
        figures = {_HELD: grown_bytes / _SLOW, _EVENT: grown_bytes / max(n_held, 1)}
        lab.note(server.name, SERVER, figures, streams=_SLOW, repeat=repeat)


def _api_bytes(server: TargetServer) -> int:
    """Return resident memory. Raises `LoadError` if it is unknown."""
    found = server.usages().get("api")
    if not found:
        raise LoadError("the memory of the server's processes cannot be seen on this system")
    return found.rss_bytes


def verdicts(lab: Lab) -> list[Verdict]:
    server = lab.median(_HELD, SERVER)
    made, written = (lab.median(_HELD, f"{PADDED}, {way}") for way in FORMAT_TIMES)
    early_s, late_s = (lab.median(_CPU, f"{KEPT_UP}, {way}") for way in FORMAT_TIMES)
    events_bytes = _PAD_BYTES * _PADDED_TOKENS
    is_same = values_of(lab.runs, _SAME)
    return [
        counted("both ways write the same bytes", [one == 1 for one in is_same], "pairs of runs"),
        lab.timed(
            "events that are formatted when made cost a slow reader their own bytes and little more",
            server <= _LITTLE * events_bytes,
            f"{server / 1e6:.2f} MB a reader of {_PADDED_TOKENS} events of {_PAD_BYTES / 1024:.0f} KiB",
        ),
        lab.timed(
            "the way out alone holds what the server does",
            abs(made / server - 1) <= _ALIKE,
            f"{made / 1e6:.2f} MB a reader, the server {server / 1e6:.2f}",
        ),
        lab.timed(
            "formatted when written, padded events cost less than a tenth of that",
            written < _TENTH * made,
            f"{written / 1e6:.2f} MB a reader in place of {made / 1e6:.2f}",
        ),
        *(_ordinary(lab, spoken) for spoken in ORDINARY if lab.figures(_EVENT, f"{spoken}, when made")),
        lab.timed(
            "to readers that keep up, an event costs no more time when it is formatted late",
            late_s <= _NO_MORE * early_s,
            f"{late_s * 1e6:.2f} µs an event, {early_s * 1e6:.2f} when formatted early",
        ),
    ]


def _ordinary(lab: Lab, spoken: SpokenProtocol) -> Verdict:
    made, written = (lab.median(_EVENT, f"{spoken}, {way}") for way in FORMAT_TIMES)
    return lab.timed(
        f"formatted when written, ordinary events of {spoken} cost less than half",
        written < _HALF * made,
        f"{written:.0f} bytes of memory an event in place of {made:.0f}",
    )


EXPERIMENT = Experiment(
    name="eager",
    question="Format events when made or when written: what do four slow readers hold under unbounded?",
    run=_run,
    columns=(
        Column(_HELD, "held a reader kB", 1e-3, 0, True),
        Column(_EVENT, "memory an event, bytes", digits=0),
        Column(_CPU, "µs an event", 1e6, 2, True),
        Column(_SAME, "same bytes %", 100, 0),
    ),
    drawn=(_HELD, _CPU),
    not_shown=(
        "the product formats when made; formatting when written is measured on a small server of the lab, which makes "
        "the same events, but has no HTTP and no policy",
        "events with log-probabilities, whose text is several times as long as what it is made from",
        "what a stream costs that can be resumed, whose events would be formatted for each of its readers",
    ),
)
