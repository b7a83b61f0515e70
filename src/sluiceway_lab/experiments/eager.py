"""Compares formatting events when they are made, as the product does, with formatting them when they are written."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import statistics

import msgspec

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.client import Connection, LoadError, Target, dial, until
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
    for repeat in range(1 if lab.is_smoke else _REPEATS):
        await _of_the_server(lab, repeat)
        await _both(lab, PADDED, repeat, _slow(lab, "completions", "x" * _PAD_BYTES, _PADDED_TOKENS))
        for spoken in ORDINARY[:1] if lab.is_smoke else ORDINARY:
            await _both(lab, spoken, repeat, _slow(lab, spoken, name, _PLAIN_TOKENS))
    for repeat in range(1 if lab.is_smoke else _FAST_REPEATS):
        n_tokens = _SMOKE_TOKENS if lab.is_smoke else _FAST_TOKENS
        fast = DeliveryConfig(
            format_time="when made",
            spoken="completions",
            model=name,
            n_readers=_FAST,
            n_tokens=n_tokens,
            waits=True,
            seed=lab.seed,
        )
        await _both(lab, KEPT_UP, repeat, fast)
    return verdicts(lab)


def _slow(lab: Lab, spoken: SpokenProtocol, model: str, n_tokens: int) -> DeliveryConfig:
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else n_tokens
    return DeliveryConfig(
        format_time="when made", spoken=spoken, model=model, n_readers=_SLOW, n_tokens=n_tokens, seed=lab.seed
    )


async def _both(lab: Lab, scenario: str, repeat: int, question: DeliveryConfig) -> None:
    """Measure both forms. Which comes first alternates."""
    written: list[list[str]] = []
    for way in FORMAT_TIMES if repeat % 2 == 0 else FORMAT_TIMES[::-1]:
        figures, digests = await _measure(msgspec.structs.replace(question, format_time=way))
        written.append(digests)
        if len(written) == len(FORMAT_TIMES):
            figures[_SAME] = float(written[0] == written[1])
        place = f"{scenario}, {way}"
        lab.note("way out", place, figures, streams=question.n_readers, repeat=repeat)


async def _measure(question: DeliveryConfig) -> tuple[dict[str, float], list[str]]:
    """Return the figures, and a digest of what each reader received.

    Readers stop reading immediately, unless the server waits for them.
    """
    async with delivery(question) as server:
        begin = asyncio.Event()
        if question.waits:
            begin.set()
        readers = [asyncio.create_task(_digest(server.target, begin)) for _ in range(question.n_readers)]
        try:
            backlog = await server.report(WriteBacklog)
            begin.set()
            spent = await server.report(Spent)
            digests = sorted(await asyncio.gather(*readers))
        finally:
            for reader in readers:
                reader.cancel()
    figures = {_CPU: spent.cpu_s / spent.n_events}
    if not question.waits:
        figures |= {
            _HELD: backlog.grown_bytes / question.n_readers,
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
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else _PADDED_TOKENS
    async with lab.server(pad_bytes=_PAD_BYTES) as server, contextlib.AsyncExitStack() as connections:
        opened = [await connections.enter_async_context(dial(server.target, is_narrow=True)) for _ in range(_SLOW)]
        before_bytes = _api_bytes(server)
        for index, (connection, prompt) in enumerate(zip(opened, prompts(lab.seed, "eager", _SLOW), strict=True)):
            await _ask_and_stall(connection, server, prompt, n_tokens, _stream_id(index))
        await _until_generated(server, n_tokens)
        n_held = total(await server.samples(), "sluiceway_stream_backlog_events")
        grown_bytes = _api_bytes(server) - before_bytes
        figures = {_HELD: grown_bytes / _SLOW, _EVENT: grown_bytes / max(n_held, 1)}
        lab.note(server.name, SERVER, figures, streams=_SLOW, repeat=repeat)


async def _ask_and_stall(
    connection: Connection, server: TargetServer, prompt: str, n_tokens: int, stream_id: str
) -> None:
    connection.stall()
    wish = {"stream_id": stream_id, "slow_client": "unbounded"}
    connection.send(server.request(prompt, n_tokens, sluiceway=wish))


async def _until_generated(server: TargetServer, n_tokens: int) -> None:
    """Wait until all tokens of all streams are generated. Raises `LoadError`."""

    async def look() -> bool:
        streams = [await server.json(f"/v1/streams/{_stream_id(index)}") for index in range(_SLOW)]
        return all(stream.get("tokens", {}).get("generated", 0) >= n_tokens for stream in streams)

    await until(look, f"{n_tokens} tokens of {_SLOW} streams", limit_s=_LIMIT_S, pause_s=_POLL_S)


def _stream_id(index: int) -> str:
    return f"lab-eager-{index}"


def _api_bytes(server: TargetServer) -> int:
    """Return resident memory. Raises `LoadError` if it is unknown."""
    found = server.usages().get("api")
    if not found:
        raise LoadError("the memory of the server's processes cannot be seen on this system")
    return found.rss_bytes


def verdicts(lab: Lab) -> list[Verdict]:
    held = {place: statistics.median(lab.figures(_HELD, place)) for place in _places(lab, _HELD)}
    cpu = {way: statistics.median(lab.figures(_CPU, f"{KEPT_UP}, {way}")) for way in FORMAT_TIMES}
    made, written = (held[f"{PADDED}, {way}"] for way in FORMAT_TIMES)
    server = held[SERVER]
    events_bytes = _PAD_BYTES * _PADDED_TOKENS
    n_same = [run.figures[_SAME] for run in lab.runs if _SAME in run.figures]
    return [
        Verdict(
            "both ways write the same bytes",
            all(n_same),
            f"in {sum(n_same):.0f} of {len(n_same)} pairs of runs",
        ),
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
        *(_ordinary(lab, spoken) for spoken in ORDINARY if f"{spoken}, {FORMAT_TIMES[0]}" in held),
        lab.timed(
            "to readers that keep up, an event costs no more time when it is formatted late",
            cpu["when written"] <= _NO_MORE * cpu["when made"],
            f"{cpu['when written'] * 1e6:.2f} µs an event, {cpu['when made'] * 1e6:.2f} when formatted early",
        ),
    ]


def _ordinary(lab: Lab, spoken: SpokenProtocol) -> Verdict:
    made, written = (statistics.median(lab.figures(_EVENT, f"{spoken}, {way}")) for way in FORMAT_TIMES)
    return lab.timed(
        f"formatted when written, ordinary events of {spoken} cost less than half",
        written < _HALF * made,
        f"{written:.0f} bytes of memory an event in place of {made:.0f}",
    )


def _places(lab: Lab, figure: str) -> list[str]:
    return list(dict.fromkeys(run.scenario for run in lab.runs if figure in run.figures))


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
