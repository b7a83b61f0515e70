"""A request releases everything and cancels each sequence at most once, whichever await a fault hits.

Each scenario runs many times. In each run a task of the request is cancelled one turn of the loop later than in the run
before, or the connection breaks one call of `receive` or `send` later. The last test compares the awaits that were hit
with all awaits in the source: a new await needs a scenario that reaches it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from sluiceway import api
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta
from sluiceway.protocols.common.body import QUICK_BYTES
from support.asgi_driver import Api, AsgiDriver, completion, settle
from support.awaits import Awaits, Place

FILES = (
    "endpoints/cancels",
    "endpoints/generate",
    "endpoints/resume",
    "endpoints/streams",
    "http/request",
    "http/middleware",
    "http/head",
    "responses/writer",
)
AWAITS = Awaits(Path(api.__file__).parent, FILES)
POST, STREAM = "/v1/completions", "/v1/streams/s"
EVENTS = {"accept": "text/event-stream"}
TOO_LONG = Refusal(status=400, code="context_length_exceeded", message="Too long.")
LAST_TURN = 60
"""A client that is still connected in this turn leaves. It would get nothing more."""
MOST_TURNS = 200
PLACES = (0, 1, 2)
"""Indices of the tasks of a request: the task that answers, and two that it may start."""


class BreakingDriver(AsgiDriver):
    """Takes one turn of the loop for each `receive` or `send`, and breaks the connection after `breaks_at` calls.

    `hit` has the awaits that were waiting for the call that failed.
    """

    def __init__(self, app: ASGIApp, *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        self.breaks_at: int | None = None
        self.n_calls = 0
        self.hit: set[Place] = set()

    async def receive(self) -> Message:
        await self._pass()
        return await super().receive()

    async def send(self, message: Message) -> None:
        await self._pass()
        await super().send(message)

    async def _pass(self) -> None:
        self.n_calls += 1
        if self.breaks_at is not None and self.n_calls > self.breaks_at:
            self.hit = self.hit or AWAITS.of_caller()
            raise ConnectionResetError
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Scenario:
    """A request, the state before it, and what the engine does meanwhile."""

    name: str
    request: tuple[Any, ...]
    options: dict[str, Any]
    before: Callable[[Api], Awaitable[None]]
    streams: StreamsConfig
    stalls: bool
    is_rejected: bool


def scenario(
    name: str,
    method: str,
    path: str,
    body: Any = b"",
    headers: dict[str, str] | None = None,
    *,
    before: Callable[[Api], Awaitable[None]] | None = None,
    streams: StreamsConfig | None = None,
    stalls: bool = False,
    is_rejected: bool = False,
    **options: Any,
) -> Scenario:
    request = (method, path, body, headers or {})
    return Scenario(name, request, options, before or _nothing, streams or StreamsConfig(), stalls, is_rejected)


async def _nothing(api: Api) -> None:
    """No request came before."""


async def _running(api: Api) -> None:
    """A resumable stream of the id `s` that another client reads."""
    body = completion(stream=True, sluiceway={"resumable": True, "stream_id": "s"})
    AsgiDriver(api.app, "POST", POST, body).start()
    await settle(lambda: api.upstream.requests)
    api.upstream.accept()
    for text in "ab":
        api.upstream.speak(text)
    await settle()


async def _ended(api: Api) -> None:
    """The same stream after its end."""
    await _running(api)
    api.upstream.finish()
    await settle()


async def _faulty(api: Api) -> None:
    """A dispatcher with a fault."""

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    api.dispatcher.open = fail  # type: ignore[assignment, method-assign]


SCENARIOS = [
    *(
        scenario(f"stream, {'stalls' if stalls else 'reads'}, {'chunks' if chunks else 'send'}", "POST", POST,
                 completion(stream=True), stalls=stalls, offers_chunks=chunks)
        for stalls, chunks in itertools.product((False, True), repeat=2)
    ),
    scenario("whole answer", "POST", POST, completion()),
    scenario("a body for a worker process", "POST", POST, completion(prompt="x" * QUICK_BYTES)),
    scenario("body in pieces", "POST", POST, [completion(stream=True)[:9], completion(stream=True)[9:]]),
    scenario("rejected", "POST", POST, completion(stream=True), is_rejected=True),
    scenario("refused", "POST", POST, completion(max_tokens="many")),
    scenario("refused by the gate", "POST", POST, completion(), {"origin": "http://example.org"}),
    scenario("refused unread", "POST", POST, [b"a", b"b"], {"content-type": "text/plain"}),
    scenario("fault in the dispatcher", "POST", POST, completion(), before=_faulty),
    scenario("resume, live", "GET", STREAM, headers=EVENTS, before=_running),
    scenario("resume, live, chunks", "GET", STREAM, headers=EVENTS, before=_running, offers_chunks=True),
    scenario("resume with a body", "GET", STREAM, [b"a"], EVENTS, before=_running, sends_all=False),
    scenario("resume, replay", "GET", STREAM, headers=EVENTS | {"last-event-id": "1"}, before=_ended),
    scenario("resume, at the end", "GET", STREAM, headers=EVENTS | {"last-event-id": "4"}, before=_ended),
    scenario("resume, head", "HEAD", STREAM, headers=EVENTS, before=_ended),
    scenario("resume, refused", "GET", STREAM, headers=EVENTS | {"last-event-id": "x"}, before=_ended),
    scenario("record", "GET", STREAM, before=_running),
    scenario("record, unknown", "GET", STREAM),
    scenario("list", "GET", "/v1/streams", before=_running),
    scenario("list, refused", "GET", "/v1/streams?limit=0", before=_running),
    scenario("cancel", "POST", f"{STREAM}/cancel", before=_running),
    scenario("cancel, unknown", "POST", f"{STREAM}/cancel"),
    scenario("cancel, too late", "POST", f"{STREAM}/cancel", before=_ended),
]  # fmt: skip


class Trial:
    """One run of a scenario. `driver.task` is the task of the request."""

    def __init__(self, given: Scenario) -> None:
        self._given = given
        self.api = Api(streams=given.streams)
        method, path, body, headers = given.request
        path, _, query = path.partition("?")
        self.driver = BreakingDriver(self.api.app, method, path, body, headers, **given.options)
        self.driver.scope["query_string"] = query.encode()
        self._upstream_turn = self._n_turns = 0
        self._others: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        await self._given.before(self.api)
        self._others = asyncio.all_tasks()
        self._upstream_turn = len(self.api.upstream.requests) and 3
        if self._given.stalls:
            self.driver.stall()
        self.driver.start()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks of the request; the one that answers is the first."""
        assert self.driver.task is not None
        found = asyncio.all_tasks() - self._others - {self.driver.task}
        return [self.driver.task, *sorted(found, key=lambda task: task.get_name())]

    @property
    def is_over(self) -> bool:
        assert self.driver.task is not None
        return self.driver.task.done()

    async def turn(self) -> None:
        """Let the loop turn once and upstream do one thing. A stalled reader reads again after the last one."""
        await asyncio.sleep(0)
        self._n_turns += 1
        if self._n_turns == LAST_TURN and not self.is_over:
            self.driver.vanish()
        upstream = self.api.upstream
        if not upstream.requests:
            return
        if upstream.cancels:
            self._answer_cancels()
            return
        self._upstream_turn += 1
        if self._given.is_rejected:
            if self._upstream_turn == 3:
                upstream.reject(TOO_LONG)
        elif self._upstream_turn == 1:
            upstream.say(Accepted(upstream.rid, 1, 0))
        elif self._upstream_turn < 6:
            upstream.say(Delta(upstream.rid, "x", (1,)))
        elif self._upstream_turn == 12:
            upstream.finish()
        elif self._upstream_turn > 12:
            self.driver.catch_up()

    def _answer_cancels(self) -> None:
        for cancel in self.api.upstream.cancels:
            self.api.upstream.end_cancelled(cancel)

    async def run(self) -> None:
        for _ in range(MOST_TURNS):
            if self.is_over:
                return
            await self.turn()
        raise AssertionError(f"{self._given.name}: it does not end")

    async def clear(self) -> None:
        """Run to the end, let other readers read to the end, and check that nothing is held.

        The client stays connected after the end: everything must be released even if it does not leave.
        """
        await self.run()
        for _ in range(20):
            await self.turn()
        await settle()
        self.api.assert_quiet()
        ended = Counter(rid for cancel in self.api.upstream.cancels for rid in cancel.rids)
        assert not ended or max(ended.values()) == 1, "a sequence was cancelled twice"
        assert asyncio.all_tasks() <= {asyncio.current_task()} | {*self._others}


async def cancelled_everywhere(given: Scenario, place: int) -> set[Place]:
    """Cancel the task of this place at each turn. Returns the awaits at which it was cancelled."""
    hit: set[Place] = set()
    for n_turns in range(MOST_TURNS):
        trial = Trial(given)
        await trial.begin()
        for _ in range(n_turns):
            await trial.turn()
        if trial.is_over:
            await trial.clear()
            return hit
        for task in trial.tasks[place : place + 1]:
            if at := AWAITS.of_task(task):  # a task that has not begun has no await
                hit |= at
                task.cancel()
                await asyncio.wait([task])
        await trial.clear()
    raise AssertionError(f"{given.name}: it does not end")


async def broken_everywhere(given: Scenario) -> set[Place]:
    """Break the connection at each call of `receive` and `send`. Returns the awaits at which it broke."""
    hit: set[Place] = set()
    for n_calls in range(MOST_TURNS):
        trial = Trial(given)
        trial.driver.breaks_at = n_calls
        await trial.begin()
        await trial.run()
        assert trial.driver.task is not None
        fault = trial.driver.task.exception()
        assert fault is None or isinstance(fault, ConnectionResetError)
        await trial.clear()
        if not trial.driver.hit:
            return hit
        hit |= trial.driver.hit
    raise AssertionError(f"{given.name}: it does not end")


@pytest.fixture(scope="module")
def cancelled_at() -> set[Place]:
    """The awaits of all scenarios at which a task was cancelled."""
    return set()


@pytest.mark.parametrize("given", SCENARIOS, ids=lambda given: given.name)
@pytest.mark.parametrize("place", PLACES, ids=["task", "first helper", "second helper"])
async def test_nothing_is_held_wherever_a_task_is_cancelled(
    given: Scenario, place: int, cancelled_at: set[Place]
) -> None:
    """The cancelled task is the one that answers, or one that it has started."""
    cancelled_at |= await cancelled_everywhere(given, place)


@pytest.mark.parametrize("given", SCENARIOS, ids=lambda given: given.name)
async def test_nothing_is_held_wherever_a_connection_breaks(given: Scenario) -> None:
    """A server may raise an exception in any call of `receive` or `send`."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the fault may end other tasks too
    assert await broken_everywhere(given)


async def test_a_scenario_reaches_every_await(cancelled_at: set[Place]) -> None:
    """If it fails, the error shows the awaits that no scenario reaches."""
    if not cancelled_at:
        for given, place in itertools.product(SCENARIOS, PLACES):
            cancelled_at |= await cancelled_everywhere(given, place)
    assert sorted(AWAITS.all - cancelled_at) == []
    assert len(AWAITS.all) > 40
