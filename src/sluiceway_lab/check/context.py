"""The server that is asked: what it is, how fast it is alone, and the requests that every question is made of."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway_lab.check.transcript import ChoicePart, Transcript, read_plain, read_transcript
from sluiceway_lab.load.calls import Call
from sluiceway_lab.load.replies import LoadError, Recording, parse_reply
from sluiceway_lab.load.scrape import total
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_POLL_S = 0.005
_POLL = 0.02
"""Of what was waited so far: who looks all the time keeps a server from its work."""
_REFRESH_S = 0.25
FIRST_LOOKS_S = 0.5
_USUAL_ITL_S = 0.05
_LEAST_TOKENS, _LEAST_LONG_TOKENS, _LEAST_BURST, _LEAST_WORDS = 16, 240, 64, 100
_PACE_ANSWERS = 4
_PACE_TOKENS = 32
_GENERATED = {
    "sluiceway": "sluiceway_generated_tokens_total",
    "vllm": "vllm:generation_tokens_total",
    "llama.cpp": "llamacpp:tokens_predicted_total",
}


class Silence(LoadError):
    """Nothing came for longer than is waited for."""


class CheckConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked. `long_tokens` is an answer that outlasts what happens beside it."""

    streams: int = 8
    tokens: int = 64
    long_tokens: int = 600
    burst: int = 640
    prompt_words: int = 400
    """Of a prompt that takes its time."""
    timeout_s: float = 120.0
    """For one question; what is not over by then has failed."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ServerPace:
    """One stream alone: from its request to its first token, and from one event with text to the next."""

    first_token_s: float
    itl_s: float


def fitted(config: CheckConfig, pace: ServerPace) -> CheckConfig:
    """As much of it as a server of this pace answers in the time that a question has: with less it is not judged."""
    slowness = max(1.0, pace.itl_s / _USUAL_ITL_S)
    return msgspec.structs.replace(
        config,
        tokens=max(min(config.tokens, _LEAST_TOKENS), int(config.tokens / slowness)),
        long_tokens=max(min(config.long_tokens, _LEAST_LONG_TOKENS), int(config.long_tokens / slowness)),
        burst=max(min(config.burst, _LEAST_BURST), int(config.burst / slowness)),
        prompt_words=max(min(config.prompt_words, _LEAST_WORDS), int(config.prompt_words / slowness)),
    )


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    server: TargetServer
    pace: ServerPace
    config: CheckConfig = CheckConfig()
    drain_pid: int | None = None

    @property
    def limit_s(self) -> float:
        """For a silence: so that a question which meets one can still say so."""
        return self.config.timeout_s / 2

    @property
    def has_usage(self) -> bool:
        """Whether it knows `stream_options`."""
        return "stream_options" in self.server.extras

    def prompts(self, name: str, n: int) -> list[str]:
        return prompts(self.config.seed, f"check/{name}", n)

    async def record(self, request: bytes) -> Recording:
        """One request from its connection to its end. Raises `Silence`; what is only slow goes on."""
        call = await Call.open(self.server.target, request)
        ending = asyncio.ensure_future(call.end())
        try:
            n_reads = -1
            while not ending.done() and call.n_reads != n_reads:
                n_reads = call.n_reads
                await asyncio.wait({ending}, timeout=self.limit_s)
            if ending.done():
                return ending.result()
            raise Silence(f"the server said nothing for {self.limit_s:g} s")
        finally:
            ending.cancel()

    async def stream(self, prompt: str, n_tokens: int, **fields: Any) -> Transcript:
        """A greedy streamed completion, whole. Raises `LoadError` for a refusal and for a silence."""
        raw = self.server.request(prompt, n_tokens, **fields)
        return read_transcript(parse_reply((await self.record(raw)).reads))

    async def streams(self, texts: Sequence[str], n_tokens: int) -> list[Transcript]:
        """All at once, each on a connection of its own. Raises the first `LoadError` of any."""
        return list(await asyncio.gather(*(self.stream(text, n_tokens) for text in texts)))

    async def plain(self, prompt: str, n_tokens: int, **fields: Any) -> ChoicePart:
        """The same, not streamed."""
        raw = self.plain_request(prompt, n_tokens, **fields)
        return read_plain(parse_reply((await self.record(raw)).reads))

    def plain_request(self, prompt: str, n_tokens: int, **fields: Any) -> bytes:
        return self.server.request(prompt, n_tokens, **{"stream": False, "stream_options": None} | fields)

    async def until_busy(self) -> None:
        """By its gauges. Raises `LoadError` if it never is."""
        deadline_s = time.perf_counter() + self.limit_s
        while await self.server.is_idle():
            if time.perf_counter() > deadline_s:
                raise LoadError(f"the server runs nothing {self.limit_s:g} s after it was asked, by its own gauges")
            await asyncio.sleep(_POLL_S)

    async def seconds_until_idle(self, limit_s: float, *, quiet_s: float = 0.0) -> float | None:
        """By the server's own gauges, which must be known; None if it still runs something then.

        Some servers renew their gauges only when they compute, so they are given a token to compute now and then. Some
        look for readers who have left only when nothing else happens, so after the first looks they are left alone for
        `quiet_s` between one and the next.
        """
        started_s = asked_s = time.perf_counter()
        while not await self.server.is_idle():
            now_s = time.perf_counter()
            waited_s = now_s - started_s
            if waited_s > limit_s:
                return None
            if now_s - asked_s > _REFRESH_S:
                with contextlib.suppress(LoadError):  # a refusal is what a busy server says
                    await self.plain("now", 1)
                asked_s = time.perf_counter()
            is_quiet = quiet_s and waited_s > FIRST_LOOKS_S
            await asyncio.sleep(quiet_s if is_quiet else max(_POLL_S, _POLL * waited_s))
        return time.perf_counter() - started_s

    async def generated(self) -> float | None:
        """Tokens generated since the server's start, by its own count; None where it has none that is known."""
        kind = self.server.kind
        return None if kind is None else total(await self.server.samples(), _GENERATED[kind])


async def paced(server: TargetServer, config: CheckConfig) -> ServerPace:
    """How fast it is alone: the best of a few, of which the first is a warm-up. Raises `LoadError`."""
    still = CheckContext(server=server, pace=ServerPace(0.0, 0.0), config=config)
    found = [await _pace_once(still, prompt) for prompt in still.prompts("pace", _PACE_ANSWERS)]
    return ServerPace(min(one.first_token_s for one in found), min(one.itl_s for one in found))


async def _pace_once(still: CheckContext, prompt: str) -> ServerPace:
    started_s = time.perf_counter()
    deltas = (await still.stream(prompt, _PACE_TOKENS)).deltas
    if not deltas:
        raise LoadError("the server answered without a text")
    if len(deltas) == 1:  # all of it at once
        return ServerPace(deltas[0].at_s - started_s, (deltas[0].at_s - started_s) / _PACE_TOKENS)
    return ServerPace(deltas[0].at_s - started_s, (deltas[-1].at_s - deltas[0].at_s) / (len(deltas) - 1))
