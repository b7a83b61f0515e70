"""Bodies are read in the loop or in a worker process, and every failure of a worker has its answer."""

from __future__ import annotations

import asyncio
import json

import pytest
import structlog

from sluiceway.api.http.request import BODIES_HELD, BodyLimits, Intake, worker_pool
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import EngineIsUp
from sluiceway.ipc.messages.to_tokenizer import ChatPrompt, TextPrompt
from sluiceway.lengths import LengthBound
from sluiceway.protocols.common.body import QUICK_BYTES, QUICK_VALUES
from sluiceway.protocols.common.reading import PromptRoom, job_head, read_result
from sluiceway.protocols.openai.requests import COMPLETIONS
from sluiceway.refusals import INTERNAL_ERROR, OVERLOADED
from sluiceway.runtime.worker import (
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFault,
    WorkerMemoryError,
    WorkerResultError,
    WorkerTimeout,
)
from support.asgi_driver import FACTS, MODEL, Api, AsgiDriver, chat, completion, fetch, settle

PATH = "/v1/completions"
LONG = completion(prompt="x" * QUICK_BYTES)
BYTES = LengthBound(bytes_a_token=1, n_special=1)


@pytest.fixture
def api() -> Api:
    api = Api()
    api.upstream.script = ["hi"]
    return api


@pytest.mark.parametrize(
    ("body", "n_jobs"),
    [
        (completion(), 0),
        (completion(prompt="x" * (QUICK_BYTES - 200)), 0),
        (LONG, 1),
        (completion(user=[0] * (QUICK_VALUES - 5)), 0),
        (completion(user=[0] * (QUICK_VALUES + 5)), 1),
        (completion(user=[[]] * QUICK_VALUES), 1),
        (completion(user={str(i): {} for i in range(QUICK_VALUES)}), 1),
    ],
    ids=["short", "full", "long", "values", "many values", "many lists", "many objects"],
)
async def test_a_long_body_or_one_with_many_values_goes_to_a_worker(api: Api, body: bytes, n_jobs: int) -> None:
    """The answer is the same."""
    driver = await fetch(api.app, "POST", PATH, body)
    assert driver.status == 200 and driver.json()["choices"][0]["text"] == "hi"
    assert api.worker.n_jobs == n_jobs
    assert api.upstream.requests[-1].prompts == (TextPrompt(json.loads(body)["prompt"]),)
    api.assert_quiet()


async def test_a_long_conversation_is_passed_on_encoded(api: Api) -> None:
    """The tokenizer gets the same messages."""
    messages = [{"role": "user", "content": "y" * QUICK_BYTES}]
    driver = await fetch(api.app, "POST", "/v1/chat/completions", chat(messages=messages))
    assert driver.status == 200 and api.worker.n_jobs == 1
    (prompt,) = api.upstream.requests[-1].prompts
    assert isinstance(prompt, ChatPrompt) and prompt.messages[0].content == messages[0]["content"]


async def test_a_long_body_that_is_wrong_is_refused(api: Api) -> None:
    """The error names the field. Nothing is sent to the tokenizer."""
    driver = await fetch(api.app, "POST", PATH, completion(prompt="x" * QUICK_BYTES, n=0))
    assert driver.status == 400 and driver.json()["error"]["param"] == "n"
    assert api.worker.n_jobs == 1 and not api.upstream.pushed


@pytest.mark.parametrize("prompt", [[1] * (QUICK_VALUES + 1), "\U0001f600" * QUICK_BYTES], ids=["ids", "text"])
async def test_a_prompt_that_cannot_fit_is_refused_by_the_worker(api: Api, prompt: str | list[int]) -> None:
    """The worker knows how long a sequence may be, and how few tokens a text can become."""
    api.dispatcher.receive(EngineIsUp(FACTS, BYTES))
    driver = await fetch(api.app, "POST", PATH, completion(prompt=prompt))
    assert driver.status == 400 and driver.json()["error"]["code"] == "context_length_exceeded"
    assert not api.upstream.pushed


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (WorkerBusy(), OVERLOADED),
        (WorkerTimeout(), OVERLOADED),
        (WorkerDied(), OVERLOADED),
        (WorkerFault("Traceback of ours"), INTERNAL_ERROR),
        (WorkerMemoryError(), None),
        (WorkerResultError(), None),
    ],
)
async def test_a_failure_of_a_worker_has_a_message_for_clients(
    api: Api, error: WorkerError, refusal: Refusal | None
) -> None:
    """The traceback is only in the log."""
    api.worker.error = error
    driver = await fetch(api.app, "POST", PATH, LONG)
    code = driver.json()["error"]["code"]
    if refusal is None:
        assert (driver.status, code) == (400, "too_many_values")
    else:
        assert (driver.status, code) == (refusal.status, refusal.code)
    assert b"Traceback" not in driver.body
    assert any("Traceback of ours" in str(line.get("fault")) for line in api.lines) is isinstance(error, WorkerFault)
    assert (await fetch(api.app, "POST", PATH, completion())).status == 200


async def test_a_client_that_leaves_while_its_body_is_read_is_noticed(api: Api) -> None:
    """The job is dropped, and nothing is sent to the tokenizer."""
    api.worker.may_read.clear()
    driver = AsgiDriver(api.app, "POST", PATH, LONG).start()
    await settle(lambda: api.worker.n_jobs)
    driver.vanish()
    await driver.done()
    assert not api.upstream.pushed and not driver.sent
    api.assert_quiet()


async def test_a_cancellation_during_cleanup_is_not_lost() -> None:
    """It may come from a deadline or a shutdown."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    class SlowToLeave:
        async def run(self, *parts: bytes) -> bytes:
            try:
                await asyncio.Event().wait()
            finally:
                is_ending.set()
                await may_end.wait()
            return b""

    intake = Intake(MODEL, BodyLimits(1 << 20), SlowToLeave(), PromptRoom, structlog.get_logger())
    driver = AsgiDriver(intake, "POST", PATH, LONG)  # type: ignore[arg-type]  # for its `receive` alone
    reading = asyncio.ensure_future(intake.read(COMPLETIONS, driver.scope, driver.receive))
    await settle()
    driver.vanish()
    await is_ending.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert intake.room.n_bytes == 0


async def test_a_repeated_request_is_recognised_when_a_worker_reads_it(api: Api) -> None:
    """The digest is of the raw body, in any parts."""
    first = AsgiDriver(api.app, "POST", PATH, LONG, {"Idempotency-Key": "k"})
    await first.run()
    halves = [LONG[:1000], LONG[1000:]]
    second = AsgiDriver(api.app, "POST", PATH, halves, {"Idempotency-Key": "k"})
    await second.run()
    assert second.json() == first.json() and len(api.upstream.requests) == 1
    other = await fetch(api.app, "POST", PATH, LONG + b" ", idempotency_key="k")
    assert other.status == 422


async def test_long_bodies_of_all_requests_are_bounded_together() -> None:
    """More is refused before it is read to its end. Short bodies are still read, and room becomes free again."""
    body = completion(prompt="x" * (12 * QUICK_BYTES))
    api = Api(limits=BodyLimits(max_bytes=len(body)))
    api.upstream.script = ["hi"]
    api.worker.may_read.clear()
    drivers = [AsgiDriver(api.app, "POST", PATH, body).start() for _ in range(BODIES_HELD)]
    await settle(lambda: api.worker.n_jobs == BODIES_HELD, n=200)
    late = await fetch(api.app, "POST", PATH, body)
    assert (late.status, late.json()["error"]["code"]) == (503, "overloaded") and "retry-after" in late.headers
    assert (await fetch(api.app, "POST", PATH, completion())).status == 200
    api.worker.may_read.set()
    for driver in drivers:
        await driver.done()
        assert driver.status == 200
    assert (await fetch(api.app, "POST", PATH, body)).status == 200
    api.assert_quiet()


async def test_the_processes_of_the_server_read_bodies() -> None:
    """They use the worker processes and the limits of `serve`."""
    pool = worker_pool(MODEL, 16 << 20)
    try:
        async with asyncio.timeout(120.0):
            request = read_result(
                await pool.run(job_head(COMPLETIONS, PromptRoom(100)), LONG),
            )
        assert request.encoded_prompts is not None and request.n_choices == 1
    finally:
        await pool.close()
