"""What `bench` measures of a server: streams, long prompts, requests that join, clients that leave, a soak, memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sluiceway_lab.load.client import Connection, LoadError, Outcome, attempt, dial, record, until
from sluiceway_lab.load.processes import ProcessUsage
from sluiceway_lab.load.record import Figures, Weights, distribution
from sluiceway_lab.load.target_server import Samples, TargetServer, total
from sluiceway_lab.load.transcript import Answer, read_answer, text_times
from sluiceway_lab.load.workload import JOINER_WORDS, PREFILL_WORDS, long_prompt, prompts

PREFILL_PROMPTS = 4
RESIDENTS = 8
SOAK_PARTS = 10
_RESIDENT_TOKENS = 256
_JOINER_TOKENS = 8
_LEAVER_TOKENS = 600
_SOAK_TOKENS = 4
_SETTLED_READS = 8
"""After this many reads a stream is well under way."""
_POLL_S = 0.002
_PATIENCE_S = 120.0
_MAX_ERRORS = 100
"""A part of the soak ends after this many failed requests."""
_SECONDS = "sluiceway_engine_seconds_total"


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run, and a sentence for each request that failed."""

    figures: Figures
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Observed:
    """The answers to the requests of a run, and what the run cost client and server."""

    answers: list[Answer]
    errors: list[str]
    costs: Figures

    @property
    def makespan_s(self) -> float:
        """From the first request to the last token."""
        return max(one.chunk_s[-1] for one in self.answers) - min(one.started_s for one in self.answers)


async def observe(server: TargetServer, work: Callable[[], Awaitable[Sequence[Outcome]]]) -> Observed:
    """Run `work` between two scrapes of the server's metrics and processes.

    Answers are parsed after the second scrape. Raises `LoadError` if no request was answered.
    """
    samples, usages, own_s = await server.samples(), server.usages(), time.process_time()
    outcomes = await work()
    costs = {"cpu_client_s": time.process_time() - own_s, **cpu_figures(usages, server.usages())}
    costs |= engine_figures(samples, await server.samples(), server.weights)
    answers, errors = read_all(outcomes)
    if not answers:
        raise LoadError(f"{server.name}: {errors[0]}" if errors else f"{server.name}: nothing was asked")
    return Observed(answers, errors, costs)


async def together(server: TargetServer, requests: Iterable[bytes]) -> list[Outcome]:
    """Send all requests at the same time, each on its own connection."""
    return list(await asyncio.gather(*(attempt(server.target, request) for request in requests)))


async def one_by_one(server: TargetServer, requests: Iterable[bytes]) -> list[Outcome]:
    """Send each request on its own connection, after the one before has ended."""
    return [await attempt(server.target, request) for request in requests]


def read_all(outcomes: Iterable[Outcome]) -> tuple[list[Answer], list[str]]:
    """Return the answers, and a sentence for each request that failed."""
    answers, errors = [], []
    for outcome in outcomes:
        try:
            if isinstance(outcome, LoadError):
                raise outcome
            answers.append(read_answer(outcome))
        except LoadError as fault:
            errors.append(str(fault))
    return answers, errors


def stream_figures(seen: Observed, n_tokens: int) -> Figures:
    """`n_tokens` is how many each stream was asked for."""
    answers, makespan_s = seen.answers, seen.makespan_s
    tokens, chunks = sum(answer.n_tokens for answer in answers), sum(len(answer.chunk_s) for answer in answers)
    figures = {
        "requests": float(len(answers)),
        "tokens": float(tokens),
        "makespan_s": makespan_s,
        "tokens_per_s": tokens / makespan_s,
        **distribution("first_token", [answer.first_token_s for answer in answers]),
        **distribution("itl", [itl_s for answer in answers for itl_s in answer.itls_s]),
        "bytes_per_token": sum(answer.n_bytes for answer in answers) / tokens,
        "chunks_per_token": chunks / tokens,
        "short_answers": float(sum(answer.n_tokens < n_tokens for answer in answers)),
        **seen.costs,
    }
    if "cpu_api_s" in figures:
        figures["cpu_api_per_chunk_s"] = figures["cpu_api_s"] / chunks
    if "cpu_tokenizer_s" in figures:
        figures["cpu_tokenizer_per_token_s"] = figures["cpu_tokenizer_s"] / tokens
    return figures


def split_costs(long: Mapping[str, float], short: Mapping[str, float]) -> Figures:
    """Separate what a request costs the API process from what each event costs.

    It draws a straight line through two runs with equally many streams, one with long and one with short answers.
    Returns nothing if a run failed, if the process is unknown, or if the answers are equally long.
    """
    if not all("cpu_api_s" in figures and "requests" in figures for figures in (long, short)):
        return {}
    long_s, short_s = (figures["cpu_api_s"] / figures["requests"] for figures in (long, short))
    long_chunks, short_chunks = (
        figures["chunks_per_token"] * figures["tokens"] / figures["requests"] for figures in (long, short)
    )
    if long_chunks == short_chunks:
        return {}
    per_chunk_s = (long_s - short_s) / (long_chunks - short_chunks)
    per_request_s = short_s - per_chunk_s * short_chunks
    return {"cpu_api_per_further_chunk_s": per_chunk_s, "cpu_api_per_request_s": per_request_s}


def cpu_figures(before: Mapping[str, ProcessUsage], after: Mapping[str, ProcessUsage]) -> Figures:
    """Return seconds of processor time by process name, and for all together."""
    nothing = ProcessUsage()
    spent = {f"cpu_{name}_s": used.cpu_s - before.get(name, nothing).cpu_s for name, used in after.items()}
    return spent | {"cpu_server_s": sum(spent.values())} if spent else {}


def engine_figures(before: Samples, after: Samples, weights: Weights | None) -> Figures:
    """Return the figures of the steps between two scrapes; none if no step ran, or for another server.

    The shares are parts of the engine's busy time: `model` (with sampling), `scheduler` (planning and committing),
    `delivery` (sending). Bytes are those of the weights, once per step, without keys and values. Operations are those
    of the matrix products; the head counts only for generated tokens.
    """

    def grown(name: str) -> float:
        return total(after, name) - total(before, name)

    steps = grown("sluiceway_step_seconds_count")
    parts = {part: _part(after, part) - _part(before, part) for part in ("plan", "model", "commit", "publish")}
    busy_s, model_s = sum(parts.values()), parts["model"]
    if steps <= 0 or model_s <= 0:
        return {}
    figures = {
        "steps": steps,
        "step_mean_s": grown("sluiceway_step_seconds_sum") / steps,
        "model_step_mean_s": model_s / steps,
        "overhead_step_mean_s": (busy_s - model_s) / steps,
        "model_share": model_s / busy_s,
        "scheduler_share": (parts["plan"] + parts["commit"]) / busy_s,
        "delivery_share": parts["publish"] / busy_s,
    }
    if weights is None:
        return figures
    generated, prompt = grown("sluiceway_generated_tokens_total"), grown("sluiceway_prompt_tokens_total")
    body = weights.parameters - weights.head_parameters
    flop = 2 * (body * (generated + prompt) + weights.head_parameters * generated)
    return figures | {
        "weights_gb_per_s": weights.step_bytes * steps / model_s / 1e9,
        "gflop_per_s": flop / model_s / 1e9,
    }


def _part(samples: Samples, part: str) -> float:
    return samples.get((_SECONDS, f'{{part="{part}"}}'), 0.0)


async def prefill(server: TargetServer, seed: int, repeat: int) -> Measured:
    """Send four prompts of a thousand words at the same time, for one token each.

    The rate needs the server's count of prompt tokens.
    """
    names = [f"prefill/{repeat}/{index}" for index in range(PREFILL_PROMPTS)]
    requests = [server.request(long_prompt(seed, name, PREFILL_WORDS), 1) for name in names]
    seen = await observe(server, lambda: together(server, requests))
    figures = {"makespan_s": seen.makespan_s, **seen.costs}
    known = [answer.prompt_tokens for answer in seen.answers if answer.prompt_tokens is not None]
    if len(known) == len(seen.answers):
        figures |= {"prompt_tokens": float(sum(known)), "prompt_tokens_per_s": sum(known) / seen.makespan_s}
    return Measured(figures, seen.errors)


async def joiner(server: TargetServer, seed: int, repeat: int) -> Measured:
    """Let a prompt of 1,500 words join eight streams. Measure its TTFT, and their longest ITL."""
    async with under_way(server, prompts(seed, f"joiner/{repeat}", RESIDENTS), _RESIDENT_TOKENS) as residents:
        joining = server.request(long_prompt(seed, f"joiner/{repeat}", JOINER_WORDS), _JOINER_TOKENS)
        joined = read_answer(await record(server.target, joining))
        answers = [read_answer(await resident.end()) for resident in residents]
    return Measured(joiner_figures(joined, answers))


def joiner_figures(joined: Answer, residents: Sequence[Answer]) -> Figures:
    """Compare the ITLs that overlap the time from the joiner's request to its first token with earlier ones."""
    during_s, before_s = [0.0], [0.0]
    for resident in residents:
        for earlier_s, later_s in itertools.pairwise(resident.chunk_s):
            if later_s <= joined.started_s:
                before_s.append(later_s - earlier_s)
            elif earlier_s <= joined.chunk_s[0]:
                during_s.append(later_s - earlier_s)
    return {
        "joiner_first_token_s": joined.first_token_s,
        "resident_stall_s": max(during_s),
        "resident_stall_before_s": max(before_s),
    }


async def leaver(server: TargetServer, seed: int, repeat: int, *, is_streaming: bool) -> Measured:
    """Close a connection in the middle of an answer, and measure the time until the server is idle.

    That time includes a scrape of its gauges, so the gauges of the server must be known.
    """
    scenario = "close_stream" if is_streaming else "close_plain"
    await _until_idle(server)
    prompt = prompts(seed, f"{scenario}/{repeat}", 1)[0]
    fields = {} if is_streaming else {"stream": False, "stream_options": None}
    async with dial(server.target, server.request(prompt, _LEAVER_TOKENS, **fields)) as connection:
        if is_streaming:
            await _until_settled([connection])
        else:
            await until(server.is_busy, "the server to be busy", limit_s=_PATIENCE_S, pause_s=_POLL_S)
    left_s = time.perf_counter()
    await _until_idle(server)
    figures = {"until_idle_s": time.perf_counter() - left_s}
    if is_streaming:
        figures["chunks_read"] = float(len(text_times(await connection.end())))
    return Measured(figures)


def memory_figures(server: TargetServer) -> Figures:
    """Return the bytes of each process and of all together; nothing if the processes are unknown."""
    usages = server.usages()
    if not usages:
        return {}
    figures = {f"pss_{name}_bytes": float(used.pss_bytes) for name, used in usages.items()}
    every = sum(usages.values(), start=ProcessUsage())
    return figures | {"pss_bytes": float(every.pss_bytes), "rss_bytes": float(every.rss_bytes)}


async def soak(server: TargetServer, n_requests: int, streams: int, seed: int, part: int) -> Measured:
    """Run one of `SOAK_PARTS` parts with its share of short requests; then measure memory, while nothing runs.

    A leak shows as a growth from part to part.
    """
    first, end = (n_requests * edge // SOAK_PARTS for edge in (part, part + 1))
    started_s, errors, indexes = time.perf_counter(), list[str](), iter(range(first, end))
    await asyncio.gather(*(_ask(server, seed, indexes, errors) for _ in range(streams)))
    duration_s = time.perf_counter() - started_s
    figures = {"requests": float(end - first), "requests_per_s": (end - first) / duration_s, **memory_figures(server)}
    return Measured(figures, errors)


async def _ask(server: TargetServer, seed: int, indexes: Iterator[int], errors: list[str]) -> None:
    """Send one request after another, each on its own connection. The answers are not kept."""
    for index in indexes:
        request = server.request(prompts(seed, f"soak/{index}", 1)[0], _SOAK_TOKENS)
        errors += read_all([await attempt(server.target, request)])[1]
        if len(errors) >= _MAX_ERRORS:
            return


@contextlib.asynccontextmanager
async def under_way(server: TargetServer, texts: Sequence[str], n_tokens: int) -> AsyncIterator[list[Connection]]:
    """Keep streams running for the length of the block, which begins when all are well under way.

    Raises `LoadError` if one ends before that.
    """
    connections = [await Connection.open(server.target, server.request(text, n_tokens)) for text in texts]
    try:
        await _until_settled(connections)
        yield connections
    finally:
        for connection in connections:
            connection.finish()


async def _until_settled(connections: Sequence[Connection]) -> None:
    async def look() -> bool:
        if any(one.is_over and one.n_reads < _SETTLED_READS for one in connections):
            raise LoadError("an answer that should go on ended after a few tokens")
        return all(one.n_reads >= _SETTLED_READS for one in connections)

    await until(look, "the streams to be under way", limit_s=_PATIENCE_S, pause_s=_POLL_S)


async def _until_idle(server: TargetServer) -> None:
    await until(server.is_idle, "the server to be idle", limit_s=_PATIENCE_S, pause_s=_POLL_S)
