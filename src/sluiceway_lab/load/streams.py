"""Runs streams on a server, at the same time or one after another, and computes their figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluiceway_lab.load.client import LoadError, Recording, record
from sluiceway_lab.load.engine_work import engine_figures
from sluiceway_lab.load.processes import ProcessUsage
from sluiceway_lab.load.record import Run, Weights, distribution
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.transcript import Answer, read_answer

Outcome = Recording | LoadError
"""What became of one request."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The answers to the requests of a run, and what the run cost client and server."""

    answers: list[Answer]
    errors: list[str]
    costs: dict[str, float]


async def observe(
    server: TargetServer, weights: Weights | None, work: Callable[[], Awaitable[Sequence[Outcome]]]
) -> Observed:
    """Run `work` between two scrapes of the server's metrics and processes.

    Answers are parsed after the second scrape. Raises `LoadError` if no request was answered.
    """
    samples, usages, own_s = await server.samples(), server.usages(), time.process_time()
    outcomes = await work()
    costs = {"cpu_client_s": time.process_time() - own_s, **cpu_figures(usages, server.usages())}
    costs |= engine_figures(samples, await server.samples(), weights)
    answers, errors = read_all(outcomes)
    if not answers:
        raise LoadError(f"{server.name}: {errors[0]}" if errors else f"{server.name}: nothing was asked")
    return Observed(answers, errors, costs)


async def together(server: TargetServer, requests: Iterable[bytes]) -> list[Outcome]:
    """Send all requests at the same time, each on its own connection."""
    return list(await asyncio.gather(*(attempt(server, request) for request in requests)))


async def one_by_one(server: TargetServer, requests: Iterable[bytes]) -> list[Outcome]:
    """Send each request on its own connection, after the one before has ended."""
    return [await attempt(server, request) for request in requests]


async def attempt(server: TargetServer, request: bytes) -> Outcome:
    try:
        return await record(server.target, request)
    except LoadError as fault:
        return fault


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


def stream_run(server: TargetServer, scenario: str, streams: int, repeat: int, seen: Observed, n_tokens: int) -> Run:
    """`n_tokens` is how many each stream was asked for. The makespan is from the first request to the last token."""
    answers = seen.answers
    makespan_s = max(answer.chunk_s[-1] for answer in answers) - min(answer.started_s for answer in answers)
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
    return Run(
        server=server.name, scenario=scenario, streams=streams, repeat=repeat, figures=figures, errors=seen.errors
    )


def split_costs(long: Mapping[str, float], short: Mapping[str, float]) -> dict[str, float]:
    """Separate what a request costs the API process from what each event costs.

    It draws a straight line through two runs with equally many streams, one with long and one with short answers.
    Returns nothing if a run failed, if the process is unknown, or if the answers are equally long.
    """
    if not all(name in figures for figures in (long, short) for name in ("cpu_api_s", "chunks_per_token", "requests")):
        return {}
    (long_s, long_chunks), (short_s, short_chunks) = (
        (figures["cpu_api_s"] / figures["requests"], _chunks(figures) / figures["requests"])
        for figures in (long, short)
    )
    if long_chunks == short_chunks:
        return {}
    per_chunk_s = (long_s - short_s) / (long_chunks - short_chunks)
    return {
        "cpu_api_per_further_chunk_s": per_chunk_s,
        "cpu_api_per_request_s": short_s - per_chunk_s * short_chunks,
    }


def _chunks(figures: Mapping[str, float]) -> float:
    return figures["chunks_per_token"] * figures["tokens"]


def cpu_figures(before: dict[str, list[ProcessUsage]], after: dict[str, list[ProcessUsage]]) -> dict[str, float]:
    """Return seconds of processor time by process name, and for all together."""
    spent = {
        f"cpu_{name}_s": sum(used.cpu_s for used in usages) - sum(used.cpu_s for used in before.get(name, ()))
        for name, usages in after.items()
    }
    return spent | {"cpu_server_s": sum(spent.values())} if spent else {}
