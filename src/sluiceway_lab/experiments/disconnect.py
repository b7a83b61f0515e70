"""Measures the time from a client's close until the engine has released what the stream held."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sluiceway_lab.experiments.experiment import Experiment, Lab, counted, values_of
from sluiceway_lab.experiments.gauge import LIMIT_S, Gauge, gauging
from sluiceway_lab.experiments.native import generate_request, stream_request
from sluiceway_lab.experiments.readers import Habit, Reading, read
from sluiceway_lab.load.client import Connection, LoadError, dial, record
from sluiceway_lab.load.record import Run, Verdict, percentile
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, total
from sluiceway_lab.load.workload import long_prompt

_REPEATS, _TOKENS, _PROMPT_WORDS = 5, 100, 400
_SMOKE_TOKENS, _SMOKE_PROMPT_WORDS = 24, 100
_STEP_TOKENS = 64
_ENDLESS = 1500
_QUEUED, _PREFILL, _FIRST, _MIDDLE, _END = "queued", "prefill", "first token", "middle", "end"
_WHEN = (_QUEUED, _PREFILL, _FIRST, _MIDDLE, _END)
_LEAVES: dict[str, Callable[[Connection], None]] = {"FIN": Connection.finish, "RST": Connection.reset}
_STREAMED, _PLAIN = "streamed", "plain"
_OWN, _FRAMEWORK, _WRITE_ONLY = "own", "starlette", "write-only"
_RELEASE, _NOTICED, _STEPS = "release_s", "noticed_to_release_s", "release_steps"
_COMPUTED, _UNREAD, _BEGUN = "tokens_computed", "tokens_unread", "tokens_begun_after"


@dataclass(frozen=True, slots=True)
class Case:
    """One client: when and how it leaves, from which kind of answer, and whose response class answers."""

    when: str
    how: str
    kind: str
    response: str = _OWN

    @property
    def scenario(self) -> str:
        named = (self.when, self.how, self.kind)
        return ", ".join(named if self.response == _OWN else (*named, self.response))

    def stream_id(self, lab: Lab, repeat: int) -> str:
        return f"lab-{self.scenario.replace(', ', '-').replace(' ', '-')}-{lab.seed}-{repeat}"


_CASES = tuple(Case(*named) for named in itertools.product(_WHEN, _LEAVES, (_STREAMED, _PLAIN)))


async def _run(lab: Lab) -> list[Verdict]:
    await _compared(lab, _CASES, lab.pick(_REPEATS, 1))
    for response in (_FRAMEWORK, _WRITE_ONLY):
        # A server that does not notice that the queued client left does not notice the client before it either.
        others = [replace(case, response=response) for case in _CASES if case.when in (_PREFILL, _FIRST, _MIDDLE)]
        shown = [case for case in others if case.when == _MIDDLE and case.how == "FIN"] if lab.is_smoke else others
        await _compared(lab, shown, 1, response)
    return verdicts(lab)


async def _compared(lab: Lab, cases: Sequence[Case], n_repeats: int, front: str | None = None) -> None:
    """Measure the cases on one server.

    It has one slot, so that a second stream is queued, and small steps, so that a long prompt takes several.
    """
    async with lab.server("--max-running", "1", "--max-step-tokens", str(_STEP_TOKENS), front=front) as server:
        for repeat in range(n_repeats):
            # Measured again each time, because the speed of the machine changes.
            decode_s, prefill_s = await _decode_step_s(server), await _prefill_step_s(lab, server, repeat)
            for case in cases:
                step_s = prefill_s if case.when == _PREFILL else decode_s
                figures = await _left(lab, server, case, repeat, step_s)
                figures |= {_STEPS: figures[_RELEASE] / step_s, "step_s": step_s}
                lab.note(server.name, case.scenario, figures, repeat=repeat)


async def _decode_step_s(server: TargetServer) -> float:
    """Return the median ITL of a stream that runs alone."""
    reading = await read(server.target, stream_request(server, "once", 32), Habit())
    return statistics.median(reading.itls_s)


async def _prefill_step_s(lab: Lab, server: TargetServer, repeat: int) -> float:
    """Return the mean step of a long prompt. These steps have more tokens than others."""
    before = await server.samples()
    await record(server.target, generate_request(server, _long_prompt(lab, f"before {repeat}"), 1))
    after = await server.samples()
    seconds, steps = (
        total(after, f"sluiceway_step_seconds_{what}") - total(before, f"sluiceway_step_seconds_{what}")
        for what in ("sum", "count")
    )
    return seconds / steps


async def _left(lab: Lab, server: TargetServer, case: Case, repeat: int, step_s: float) -> dict[str, float]:
    """Let one client leave, and return its figures."""
    stream_id = case.stream_id(lab, repeat)
    is_queued, drawing = case.when == _QUEUED, random.Random(stream_id)
    occupied = _occupied(server) if is_queued else contextlib.nullcontext()
    async with occupied, dial(server.target) as connection, gauging(server) as gauge:
        (n_noticed, noticed_s), n_before = await gauge.released(), await gauge.computed()
        reading = Reading(time.perf_counter()) if case.kind == _STREAMED and not is_queued else None
        connection.send(_request(lab, server, case, stream_id))
        await _moment(gauge, connection, case.when, stream_id, _n_tokens(lab), reading)
        # A client may leave at any time within a step.
        n_read = await _linger(gauge, connection, stream_id, reading, drawing.random() * step_s)
        left_s = time.perf_counter()
        _LEAVES[case.how](connection)
        await gauge.until_released(n_others=int(is_queued))
        figures = {_RELEASE: time.perf_counter() - left_s}
        released = await gauge.released()
        if released[0] == n_noticed + 1:
            figures[_NOTICED] = released[1] - noticed_s
        if not is_queued:  # the stream that occupies the slot continues
            figures |= _tokens(await gauge.computed() - n_before, n_read)
        return figures


def _tokens(n_computed: int, n_read: int) -> dict[str, float]:
    """Count the unread tokens.

    The first unread token was begun when the last read one was done, before the reader left.
    """
    return {_COMPUTED: n_computed, _UNREAD: n_computed - n_read, _BEGUN: max(0, n_computed - n_read - 1)}


def _n_tokens(lab: Lab) -> int:
    return lab.pick(_TOKENS, _SMOKE_TOKENS)


def _long_prompt(lab: Lab, name: str) -> str:
    return long_prompt(lab.seed, name, lab.pick(_PROMPT_WORDS, _SMOKE_PROMPT_WORDS))


def _request(lab: Lab, server: TargetServer, case: Case, stream_id: str) -> bytes:
    """Make a request whose events can be counted: the native stream has one for each token, even without text."""
    make = stream_request if case.kind == _STREAMED else generate_request
    prompt = _long_prompt(lab, stream_id) if case.when == _PREFILL else long_prompt(lab.seed, stream_id, 10)
    return make(server, prompt, _n_tokens(lab), stream_id=stream_id)


async def _moment(
    gauge: Gauge, connection: Connection, when: str, stream_id: str, n_tokens: int, reading: Reading | None
) -> None:
    """Wait until the client should leave: by what it reads, or else by the server's metrics."""
    if when == _QUEUED:
        await gauge.until("a queue", lambda samples: total(samples, "sluiceway_requests_waiting") > 0)
        return
    if when == _PREFILL:
        await gauge.until("a prefill", lambda samples: total(samples, "sluiceway_requests_running") > 0)
        return
    n_wanted = {_FIRST: 1, _MIDDLE: n_tokens // 2, _END: n_tokens - 2}[when]
    if reading is None:
        await gauge.until_generated(stream_id, n_wanted)
        return
    await _read_to(connection, reading, n_wanted)


async def _read_to(connection: Connection, reading: Reading, n_tokens: int) -> None:
    """Read until this many tokens have come. Raises `LoadError` if they do not."""
    while reading.n_tokens < n_tokens:
        if not (raw := await connection.read_some(LIMIT_S)):
            raise LoadError(f"an answer ended before its {n_tokens} tokens")
        reading.take(raw)


async def _linger(gauge: Gauge, connection: Connection, stream_id: str, reading: Reading | None, for_s: float) -> int:
    """Read on for some time, and return how many tokens there are then."""
    until_s = time.perf_counter() + for_s
    if reading is None:
        await asyncio.sleep(for_s)
        return await gauge.generated(stream_id)
    with contextlib.suppress(LoadError):  # also raised for a silence
        while (left_s := until_s - time.perf_counter()) > 0 and (raw := await connection.read_some(left_s)):
            reading.take(raw)
    return reading.n_tokens


@contextlib.asynccontextmanager
async def _occupied(server: TargetServer) -> AsyncIterator[None]:
    """Occupy the only slot for the length of the block."""
    async with dial(server.target, stream_request(server, "again", _ENDLESS)) as connection:
        await _read_to(connection, Reading(time.perf_counter()), 1)
        yield
    async with gauging(server) as gauge:
        await gauge.until_released()


def verdicts(lab: Lab) -> list[Verdict]:
    ours = _runs(lab, _CASES)
    steps, release_s = values_of(ours, _STEPS), values_of(ours, _RELEASE)
    unread, begun = values_of(ours, _UNREAD), values_of(ours, _BEGUN)
    worst = max(ours, key=lambda run: run.figures[_STEPS])
    return [
        lab.timed(
            "half of them are released within one step",
            statistics.median(steps) < 1,
            f"the median of {len(steps)} is {statistics.median(steps):.2f} steps, "
            f"{statistics.median(release_s) * 1e3:.1f} ms; {_since_noticed(ours)}",
        ),
        lab.timed(
            "all of them are released within two steps",
            max(steps) < 2,
            f"worst {max(steps):.2f} steps, {max(release_s) * 1e3:.1f} ms ({worst.scenario}); "
            f"p99 {percentile(release_s, 99) * 1e3:.1f} ms",
        ),
        lab.timed(
            "at most one token is begun after a client has left",
            max(begun) <= 1,
            f"no more than {sum(begun):.0f} after {len(begun)} clients, {max(begun):.0f} after one; with what was "
            f"under way or on its way, {sum(unread):.0f} were not read, at most {max(unread):.0f} of one",
        ),
        *_of_others(lab),
    ]


def _since_noticed(ours: Sequence[Run]) -> str:
    noticed_s = values_of(ours, _NOTICED)
    if not noticed_s:
        return "the server does not say"
    return f"by the server's clock, from when it had noticed, {statistics.median(noticed_s) * 1e3:.1f} ms"


def _of_others(lab: Lab) -> Iterator[Verdict]:
    """Judge the other response classes, if they were measured."""
    others = [replace(case, response=response) for case in _CASES for response in (_FRAMEWORK, _WRITE_ONLY)]
    listening = _runs(lab, [case for case in others if case.response == _FRAMEWORK and case.kind == _STREAMED])
    deaf = _runs(lab, [case for case in others if case.response == _WRITE_ONLY or case.kind == _PLAIN])
    if listening:
        steps = values_of(listening, _STEPS)
        yield lab.timed(
            "a stream of the framework's own response is released within two steps too",
            max(steps) < 2,
            f"worst {max(steps):.2f} steps of {len(steps)}",
        )
    if deaf:
        yield counted(
            "without listening, the whole answer is computed: the framework's plain answer, any that is only written",
            [run.figures[_COMPUTED] == _n_tokens(lab) for run in deaf],
            f"ran to their {_n_tokens(lab)} tokens",
        )


def _runs(lab: Lab, cases: Sequence[Case]) -> list[Run]:
    scenarios = {case.scenario for case in cases}
    return [run for run in lab.runs if run.scenario in scenarios]


EXPERIMENT = Experiment(
    name="disconnect",
    question="How long after a client's close is what its stream held released?",
    run=_run,
    columns=(
        Column(_RELEASE, "release ms", 1e3, 1, True),
        Column(_NOTICED, "of it after notice ms", 1e3, 1, True),
        Column(_STEPS, "steps", digits=2, is_spread=True),
        Column(_UNREAD, "tokens unread", digits=0, is_spread=True),
        Column(_BEGUN, "begun after", digits=0, is_spread=True),
        Column("step_s", "step ms", 1e3),
    ),
    drawn=(_STEPS, _UNREAD),
    not_shown=(
        "the time from a client's close holds that of an answer to the question whether all is given back: 1 or 2 ms",
        "clients that leave behind a proxy, or without a word",
    ),
)
