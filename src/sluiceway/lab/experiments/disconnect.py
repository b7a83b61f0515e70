"""A client closes its connection: how long until the engine has given back what the stream held."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway.lab.check.line import Line, dial, keeping
from sluiceway.lab.experiments.experiment import Experiment, Lab, Verdict
from sluiceway.lab.experiments.readers import Reading
from sluiceway.lab.load.record import Run
from sluiceway.lab.load.replies import LoadError
from sluiceway.lab.load.scrape import Samples, parse_samples, total
from sluiceway.lab.load.statistics import percentile
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.tables import Column
from sluiceway.lab.load.workload import long_prompt

_REPEATS, _TOKENS, _PROMPT_WORDS = 5, 100, 400
_SMOKE_TOKENS, _SMOKE_PROMPT_WORDS = 24, 100
_STEP_TOKENS = 64
_ENDLESS = 1500
_LIMIT_S = 20.0
_POLL_S = 0.002
"""Whoever looks without a pause keeps the process busy that shall notice a close."""
_WHEN = ("queued", "prefill", "first token", "middle", "end")
_LEAVES: dict[str, Callable[[Line], None]] = {"FIN": Line.finish, "RST": Line.reset}
_KINDS = ("streamed", "plain")
_RELEASE, _STEPS, _AFTER = "release_s", "release_steps", "tokens_after"


@dataclass(frozen=True, slots=True)
class Gauge:
    """Looks at the server's own numbers, on one connection, so that a look takes little."""

    subject: Subject
    line: Line

    async def samples(self) -> Samples:
        return parse_samples((await self._get("/metrics")).decode())

    async def computed(self) -> int:
        """Tokens of all streams since the server's start, those that nobody took with them."""
        engine = msgspec.json.decode(await self._get("/stats"))["engine"]
        return int(engine["generated_tokens_total"] + engine["wasted_tokens_total"])

    async def generated(self, stream_id: str) -> int:
        """0 where there is no such stream yet."""
        stream = msgspec.json.decode(await self._get(f"/v1/streams/{stream_id}"))
        return int(stream["tokens"]["generated"]) if "tokens" in stream else 0

    async def until(self, what: str, is_so: Callable[[Samples], bool]) -> None:
        """Raises `LoadError` if it does not come to that."""
        deadline_s = time.perf_counter() + _LIMIT_S
        while not is_so(await self.samples()):
            if time.perf_counter() > deadline_s:
                raise LoadError(f"{_LIMIT_S:g} s went by without {what}")
            await asyncio.sleep(_POLL_S)

    async def until_generated(self, stream_id: str, n_tokens: int) -> None:
        """Raises `LoadError` if it does not come to that."""
        deadline_s = time.perf_counter() + _LIMIT_S
        while await self.generated(stream_id) < n_tokens:
            if time.perf_counter() > deadline_s:
                raise LoadError(f"{_LIMIT_S:g} s went by without {n_tokens} tokens")
            await asyncio.sleep(_POLL_S)

    async def _get(self, path: str) -> bytes:
        await self.line.send(keeping(self.subject.target.request("GET", path)))
        return (await self.line.read_reply(_LIMIT_S)).body


async def _run(lab: Lab) -> list[Verdict]:
    # One slot, so that a second stream is queued; small steps, so that a long prompt takes several.
    async with lab.server("--max-running", "1", "--max-step-tokens", str(_STEP_TOKENS)) as subject:
        step_s = await _step_s(subject)
        for repeat in range(1 if lab.is_smoke else _REPEATS):
            for when, how, kind in itertools.product(_WHEN, _LEAVES, _KINDS):
                figures = await _left(lab, subject, when, how, kind, repeat, step_s)
                figures |= {_STEPS: figures[_RELEASE] / step_s, "step_s": step_s}
                scenario = f"{when}, {how}, {kind}"
                lab.note(Run(subject=subject.name, scenario=scenario, streams=0, repeat=repeat, figures=figures))
    return verdicts(lab)


async def _step_s(subject: Subject) -> float:
    """From one token of a stream to the next, where it is alone."""
    reading = Reading(time.perf_counter())
    async with dial(subject.target) as line:
        await line.send(subject.request("once", 32))
        while raw := await line.read_some(_LIMIT_S):
            reading.take(raw)
    return statistics.median(reading.gaps_s)


async def _left(
    lab: Lab, subject: Subject, when: str, how: str, kind: str, repeat: int, step_s: float
) -> dict[str, float]:
    """One client that leaves at that moment, in that way. Tokens that came after are known where it read the others."""
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else _TOKENS
    stream_id = f"lab-{'-'.join((when, how, kind)).replace(' ', '-')}-{lab.seed}-{repeat}"
    request = _request(lab, subject, stream_id, n_tokens, is_long=when == "prefill", is_plain=kind == "plain")
    is_queued, drawing = when == "queued", random.Random(stream_id)
    async with _occupied(subject, is_queued), dial(subject.target) as line, dial(subject.target) as own:
        gauge = Gauge(subject, own)
        n_before = await gauge.computed()
        reading = Reading(time.perf_counter()) if kind == "streamed" and not is_queued else None
        await _moment(gauge, line, request, when, stream_id, n_tokens, reading)
        # Whoever leaves does so at any time within a step.
        n_read = await _linger(gauge, line, stream_id, reading, drawing.random() * step_s)
        _LEAVES[how](line)
        left_s = time.perf_counter()
        await gauge.until("a release", lambda samples: _is_released(samples, n_others=int(is_queued)))
        figures = {_RELEASE: time.perf_counter() - left_s}
        if not is_queued:  # there, somebody else's go on
            figures[_AFTER] = float(await gauge.computed() - n_before - n_read)
        return figures


def _request(lab: Lab, subject: Subject, stream_id: str, n_tokens: int, *, is_long: bool, is_plain: bool) -> bytes:
    n_words = (_SMOKE_PROMPT_WORDS if lab.is_smoke else _PROMPT_WORDS) if is_long else 10
    fields: dict[str, Any] = {"sluiceway": {"stream_id": stream_id}}
    if is_plain:
        fields |= {"stream": False, "stream_options": None}
    return subject.request(long_prompt(lab.seed, stream_id, n_words), n_tokens, **fields)


async def _moment(
    gauge: Gauge, line: Line, request: bytes, when: str, stream_id: str, n_tokens: int, reading: Reading | None
) -> None:
    """Asks, and waits until it is so far: by what it reads, or else by the server's numbers."""
    prompts_before = total(await gauge.samples(), "sluiceway_prompt_tokens_total")
    await line.send(request)
    if when == "queued":
        await gauge.until("a queue", lambda samples: total(samples, "sluiceway_requests_waiting") > 0)
        return
    if when == "prefill":
        await gauge.until("a prefill", lambda samples: total(samples, "sluiceway_prompt_tokens_total") > prompts_before)
        return
    n_wanted = {"first token": 1, "middle": n_tokens // 2, "end": n_tokens - 2}[when]
    if reading is None:
        await gauge.until_generated(stream_id, n_wanted)
        return
    while reading.n_tokens < n_wanted:
        if not (raw := await line.read_some(_LIMIT_S)):
            raise LoadError(f"an answer ended before its {n_wanted} tokens")
        reading.take(raw)


async def _linger(gauge: Gauge, line: Line, stream_id: str, reading: Reading | None, for_s: float) -> int:
    """Stays so long, reading what comes; how many tokens there are then."""
    until_s = time.perf_counter() + for_s
    if reading is None:
        await asyncio.sleep(for_s)
        return await gauge.generated(stream_id)
    with contextlib.suppress(LoadError):  # it is said of a silence, too
        while (left_s := until_s - time.perf_counter()) > 0 and (raw := await line.read_some(left_s)):
            reading.take(raw)
    return reading.n_tokens


def _is_released(samples: Samples, n_others: int) -> bool:
    """Whether nothing runs or waits but the others; without others, whether every block is free or kept for reuse."""
    n_live = total(samples, "sluiceway_requests_running") + total(samples, "sluiceway_requests_waiting")
    n_idle = total(samples, "sluiceway_kv_blocks_free") + total(samples, "sluiceway_kv_blocks_cached")
    return n_live == n_others and (n_others > 0 or n_idle == total(samples, "sluiceway_kv_blocks_total"))


@contextlib.asynccontextmanager
async def _occupied(subject: Subject, is_wanted: bool) -> AsyncIterator[None]:
    """Somebody has the only slot meanwhile."""
    async with dial(subject.target) as line:
        if is_wanted:
            await line.send(subject.request("again", _ENDLESS))
            reading = Reading(time.perf_counter())
            while not reading.n_tokens:
                reading.take(await line.read_some(_LIMIT_S))
        yield
    if is_wanted:
        async with dial(subject.target) as own:
            await Gauge(subject, own).until("an end", lambda samples: _is_released(samples, n_others=0))


def verdicts(lab: Lab) -> list[Verdict]:
    steps = [run.figures[_STEPS] for run in lab.runs]
    worst = max(lab.runs, key=lambda run: run.figures[_STEPS])
    after = [run.figures[_AFTER] for run in lab.runs if _AFTER in run.figures]
    release_s = [run.figures[_RELEASE] for run in lab.runs]
    return [
        lab.timed(
            "half of them are released within one step",
            statistics.median(steps) < 1,
            f"the median of {len(steps)} is {statistics.median(steps):.2f} steps, "
            f"{statistics.median(release_s) * 1e3:.1f} ms",
        ),
        lab.timed(
            "all of them are released within two steps",
            max(steps) < 2,
            f"worst {max(steps):.2f} steps, {max(release_s) * 1e3:.1f} ms ({worst.scenario}); "
            f"p99 {percentile(release_s, 99) * 1e3:.1f} ms",
        ),
        lab.timed(
            "at most one token is generated after a client has left",
            max(after) <= 1,
            f"{sum(after):.0f} after {len(after)} clients, at most {max(after):.0f} after one",
        ),
    ]


EXPERIMENT = Experiment(
    name="disconnect",
    question="How long after a client's close is what its stream held given back?",
    run=_run,
    columns=(
        Column(_RELEASE, "release ms", 1e3, 1, True),
        Column(_STEPS, "steps", digits=2, is_spread=True),
        Column(_AFTER, "tokens after", digits=0, is_spread=True),
        Column("step_s", "step ms", 1e3),
    ),
    drawn=(_STEPS,),
    not_shown=(
        "the time holds that of a scrape, and the pause between two: some milliseconds",
        "how a response that only writes, or another framework's, would do: the server has none",
    ),
)
