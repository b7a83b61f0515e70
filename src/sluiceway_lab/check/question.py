"""Defines a question of `check`, the context in which it sends its requests, and the finding that it returns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway_lab.load.client import LoadError, Outcome, Recording, dial, until
from sluiceway_lab.load.record import Figures, Grade
from sluiceway_lab.load.target_server import TargetServer, total
from sluiceway_lab.load.transcript import ChoicePart, Transcript, read_plain, read_transcript
from sluiceway_lab.load.workload import prompts

_POLL_S = 0.005
_POLL = 0.02
"""The pause before the next look, as a share of the time waited so far. Constant looking would slow the server down."""
_REFRESH_S = 0.25
FIRST_LOOKS_S = 0.5
_USUAL_ITL_S = 0.05
_LEAST = {"tokens": 16, "long_tokens": 240, "burst": 64, "prompt_words": 100}
_PACE_ANSWERS = 4
_PACE_TOKENS = 32
_GENERATED = {
    "sluiceway": "sluiceway_generated_tokens_total",
    "vllm": "vllm:generation_tokens_total",
    "llama.cpp": "llamacpp:tokens_predicted_total",
}


class Silence(LoadError):
    """The server sent nothing for longer than the limit."""


class Finding(msgspec.Struct, frozen=True):
    """The answer to a question."""

    grade: Grade
    sentence: str
    figures: Figures = {}


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a server.

    `ask` sends a bounded number of requests; its caller limits its time. If it raises `LoadError`, the server failed.
    """

    name: str
    asks: str
    ask: Callable[[CheckContext], Awaitable[Finding]]


def unknown(reason: str) -> Finding:
    return Finding(Grade.UNKNOWN, reason)


def graded(value: float, passes_to: float, warns_to: float) -> Grade:
    """Grade a value. Smaller values are better."""
    if value <= passes_to:
        return Grade.PASS
    return Grade.WARN if value <= warns_to else Grade.FAIL


def by_faults(faults: list[str], blemishes: list[str], praise: str, figures: Figures | None = None) -> Finding:
    """Any fault fails, any blemish warns. The sentence names all of them."""
    grade = Grade.FAIL if faults else Grade.WARN if blemishes else Grade.PASS
    return Finding(grade, "; ".join(dict.fromkeys([*faults, *blemishes])) or praise, figures or {})


def grouped(found: Iterable[tuple[str, str]]) -> list[str]:
    """Name each fault once, followed by all its owners. `found` has pairs of a fault and its owner."""
    owners: dict[str, list[str]] = {}
    for fault, owner in found:
        owners.setdefault(fault, []).append(owner)
    return [f"{fault} ({', '.join(names)})" for fault, names in owners.items()]


class CheckConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the requests of the questions. A stream of `long_tokens` outlasts everything that happens during it."""

    streams: int = 8
    tokens: int = 64
    long_tokens: int = 600
    burst: int = 640
    prompt_words: int = 400
    """Words of a prompt that takes long to compute."""
    timeout_s: float = 120.0
    """Limit for one question. A question that has not ended by then has failed."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ServerPace:
    """The speed of one stream alone: its TTFT, and its ITL between events with text."""

    first_token_s: float
    itl_s: float


def fitted(config: CheckConfig, pace: ServerPace) -> CheckConfig:
    """Reduce the amounts to what a server of this speed answers in time, but not below what a question needs."""
    slowness = max(1.0, pace.itl_s / _USUAL_ITL_S)
    amounts = {name: getattr(config, name) for name in _LEAST}
    fitting = {name: max(min(n, _LEAST[name]), int(n / slowness)) for name, n in amounts.items()}
    return msgspec.structs.replace(config, **fitting)


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """Sends requests to the server for a question."""

    server: TargetServer
    pace: ServerPace
    config: CheckConfig = CheckConfig()
    drain_pid: int | None = None

    @property
    def limit_s(self) -> float:
        """How long the server may send nothing. Less than the question's limit, so that it can still report."""
        return self.config.timeout_s / 2

    @property
    def has_usage(self) -> bool:
        """True if the server knows `stream_options`."""
        return "stream_options" in self.server.extras

    def prompts(self, name: str, n: int) -> list[str]:
        return prompts(self.config.seed, f"check/{name}", n)

    async def record(self, request: bytes) -> Recording:
        """Send a request on a new connection, and record the whole answer.

        Raises `Silence` if the server sends nothing for too long. An answer that is only slow continues.
        """
        async with dial(self.server.target, request) as connection:
            try:
                await connection.read_rest(self.limit_s)
            except LoadError:
                raise Silence(f"the server said nothing for {self.limit_s:g} s") from None
            return await connection.end()

    async def attempt(self, request: bytes) -> Outcome:
        """Record the whole answer, or return why there is none."""
        try:
            return await self.record(request)
        except LoadError as fault:
            return fault

    async def stream(self, prompt: str, n_tokens: int, **fields: Any) -> Transcript:
        """Stream a greedy completion. Raises `LoadError` for a refusal and for a silence."""
        return read_transcript((await self.record(self.server.request(prompt, n_tokens, **fields))).reply())

    async def streams(self, texts: Sequence[str], n_tokens: int) -> list[Transcript]:
        """Stream all of them at the same time, each on its own connection. Raises the first `LoadError`."""
        return list(await asyncio.gather(*(self.stream(text, n_tokens) for text in texts)))

    async def plain(self, prompt: str, n_tokens: int, **fields: Any) -> ChoicePart:
        """Request the same answer without streaming."""
        return read_plain((await self.record(self.plain_request(prompt, n_tokens, **fields))).reply())

    def plain_request(self, prompt: str, n_tokens: int, **fields: Any) -> bytes:
        return self.server.request(prompt, n_tokens, **{"stream": False, "stream_options": None} | fields)

    async def until_busy(self) -> None:
        """Wait until the gauges say that the server computes. Raises `LoadError`."""
        what = "the server to run something, by its own gauges"
        await until(self.server.is_busy, what, limit_s=self.limit_s, pause_s=_POLL_S)

    async def seconds_until_idle(self, limit_s: float, *, quiet_s: float = 0.0) -> float | None:
        """Wait until the gauges say that the server is idle; return None if it is not within `limit_s`.

        Some servers update their gauges only when they compute, so they get a token to compute now and then. Others
        look for clients that have left only when nothing else happens, so after the first looks there are pauses of
        `quiet_s`.
        """
        started_s = asked_s = time.perf_counter()
        while await self.server.is_busy():
            now_s = time.perf_counter()
            waited_s = now_s - started_s
            if waited_s > limit_s:
                return None
            if now_s - asked_s > _REFRESH_S:
                with contextlib.suppress(LoadError):  # a busy server may refuse
                    await self.plain("now", 1)
                asked_s = time.perf_counter()
            is_quiet = quiet_s and waited_s > FIRST_LOOKS_S
            await asyncio.sleep(quiet_s if is_quiet else max(_POLL_S, _POLL * waited_s))
        return time.perf_counter() - started_s

    async def generated(self) -> float | None:
        """Return how many tokens the server has generated since its start; None if it does not publish that."""
        kind = self.server.kind
        return None if kind is None else total(await self.server.samples(), _GENERATED[kind])


async def paced(server: TargetServer, config: CheckConfig) -> ServerPace:
    """Measure the speed of the server alone: the best of several streams. Raises `LoadError`."""
    still = CheckContext(server=server, pace=ServerPace(0.0, 0.0), config=config)
    found = [await _pace_once(still, prompt) for prompt in still.prompts("pace", _PACE_ANSWERS)]
    return ServerPace(min(one.first_token_s for one in found), min(one.itl_s for one in found))


async def _pace_once(still: CheckContext, prompt: str) -> ServerPace:
    started_s = time.perf_counter()
    deltas = (await still.stream(prompt, _PACE_TOKENS)).deltas
    if not deltas:
        raise LoadError("the server answered without a text")
    first_token_s = deltas[0].at_s - started_s
    if len(deltas) == 1:  # the whole answer came in one event
        return ServerPace(first_token_s, first_token_s / _PACE_TOKENS)
    return ServerPace(first_token_s, (deltas[-1].at_s - deltas[0].at_s) / (len(deltas) - 1))
