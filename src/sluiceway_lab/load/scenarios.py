"""The scenarios of `bench` besides plain streams: long prompts, a request that joins streams, a client that leaves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from sluiceway_lab.load.client import Connection, LoadError, until
from sluiceway_lab.load.record import Run, Weights
from sluiceway_lab.load.streams import observe, together
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.transcript import Answer, read_answer, text_times
from sluiceway_lab.load.workload import JOINER_WORDS, PREFILL_WORDS, long_prompt, prompts

PREFILL_PROMPTS = 4
RESIDENTS = 8
_RESIDENT_TOKENS = 256
_JOINER_TOKENS = 8
_LEAVER_TOKENS = 600
_SETTLED_READS = 8
"""After this many reads a stream is well under way."""
_POLL_S = 0.002
_PATIENCE_S = 120.0


async def prefill(server: TargetServer, weights: Weights | None, seed: int, repeat: int) -> Run:
    """Send four prompts of a thousand words at the same time, for one token each.

    The rate needs the server's count of prompt tokens.
    """
    names = [f"prefill/{repeat}/{index}" for index in range(PREFILL_PROMPTS)]
    requests = [server.request(long_prompt(seed, name, PREFILL_WORDS), 1) for name in names]
    seen = await observe(server, weights, lambda: together(server, requests))
    makespan_s = max(one.chunk_s[-1] for one in seen.answers) - min(one.started_s for one in seen.answers)
    figures = {"makespan_s": makespan_s, **seen.costs}
    counts = [answer.prompt_tokens for answer in seen.answers]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        figures |= {"prompt_tokens": float(sum(known)), "prompt_tokens_per_s": sum(known) / makespan_s}
    return _run(server, "prefill", PREFILL_PROMPTS, repeat, figures, seen.errors)


async def joiner(server: TargetServer, seed: int, repeat: int) -> Run:
    """Let a prompt of 1,500 words join eight streams. Measure its TTFT, and their longest ITL."""
    residents = [
        await Connection.open(server.target, server.request(prompt, _RESIDENT_TOKENS))
        for prompt in prompts(seed, f"joiner/{repeat}", RESIDENTS)
    ]
    try:
        await until_settled(residents)
        joining = server.request(long_prompt(seed, f"joiner/{repeat}", JOINER_WORDS), _JOINER_TOKENS)
        joined = read_answer(await (await Connection.open(server.target, joining)).end())
        answers = [read_answer(await resident.end()) for resident in residents]
    finally:
        for resident in residents:
            resident.finish()
    return _run(server, "joiner", RESIDENTS, repeat, joiner_figures(joined, answers), [])


def joiner_figures(joined: Answer, residents: Sequence[Answer]) -> dict[str, float]:
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


async def leaver(server: TargetServer, seed: int, repeat: int, *, is_streaming: bool) -> Run:
    """Close a connection in the middle of an answer, and measure the time until the server is idle.

    That time includes a scrape of its gauges, so the gauges of the server must be known.
    """
    scenario = "close_stream" if is_streaming else "close_plain"
    await _until_idle(server)
    prompt = prompts(seed, f"{scenario}/{repeat}", 1)[0]
    fields = {} if is_streaming else {"stream": False, "stream_options": None}
    call = await Connection.open(server.target, server.request(prompt, _LEAVER_TOKENS, **fields))
    try:
        if is_streaming:
            await until_settled([call])
        else:
            await _until_busy(server)
    finally:
        call.finish()
    left_s = time.perf_counter()
    await _until_idle(server)
    figures = {"until_idle_s": time.perf_counter() - left_s}
    if is_streaming:
        figures["chunks_read"] = float(len(text_times(await call.end())))
    return _run(server, scenario, 1, repeat, figures, [])


def memory(server: TargetServer) -> Run:
    """Measure the memory of all processes of the server."""
    return _run(server, "memory", 0, 0, memory_figures(server), [])


def memory_figures(server: TargetServer) -> dict[str, float]:
    """Return the bytes of each process and of all together; nothing if the processes are unknown."""
    usages = server.usages()
    figures = {f"pss_{name}_bytes": float(sum(used.pss_bytes for used in found)) for name, found in usages.items()}
    if figures:
        figures["pss_bytes"] = sum(figures.values())
        figures["rss_bytes"] = float(sum(used.rss_bytes for found in usages.values() for used in found))
    return figures


def start(server: TargetServer, ready_s: float) -> Run:
    """Report the time from the start of the server until it served."""
    return _run(server, "start", 0, 0, {"ready_s": ready_s}, [])


def _run(
    server: TargetServer, scenario: str, streams: int, repeat: int, figures: dict[str, float], errors: list[str]
) -> Run:
    return Run(server=server.name, scenario=scenario, streams=streams, repeat=repeat, figures=figures, errors=errors)


async def until_settled(calls: Sequence[Connection]) -> None:
    """Wait until all streams are well under way. Raises `LoadError` if one ends before."""

    async def look() -> bool:
        if any(call.is_over and call.n_reads < _SETTLED_READS for call in calls):
            raise LoadError("an answer that should go on ended after a few tokens")
        return all(call.n_reads >= _SETTLED_READS for call in calls)

    await until(look, "the streams to be under way", limit_s=_PATIENCE_S, pause_s=_POLL_S)


async def _until_idle(server: TargetServer) -> None:
    await until(server.is_idle, "the server to be idle", limit_s=_PATIENCE_S, pause_s=_POLL_S)


async def _until_busy(server: TargetServer) -> None:
    async def look() -> bool:
        return not await server.is_idle()

    await until(look, "the server to be busy", limit_s=_PATIENCE_S, pause_s=_POLL_S)
