"""What other responses than ours do with a client that leaves, and that they answer one that stays."""

from __future__ import annotations

import json

import pytest

from sluiceway.config import LabResponse, StreamsConfig
from sluiceway.errors import Refusal
from sluiceway.messages.to_tokenizer import Cancel
from sluiceway.types import FinishReason
from support.asgi_driver import Api, AsgiDriver, completion, settle

PATH = "/v1/completions"
of_the_lab = pytest.mark.parametrize("response", ["starlette", "write-only"])


async def opened(response: LabResponse, *, stream: bool) -> tuple[Api, AsgiDriver]:
    """A request that has gone upstream. The server offers to write by itself."""
    api = Api(streams=StreamsConfig(lab_response=response))
    driver = AsgiDriver(api.app, "POST", PATH, completion(stream=stream), offers_chunks=True).start()
    await settle(lambda: api.upstream.requests)
    return api, driver


@of_the_lab
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_stays_gets_its_answer(response: LabResponse, stream: bool) -> None:
    """The same as from ours: only so can they be compared."""
    answers = []
    for each in ("own", response):
        api, driver = await opened(each, stream=stream)
        api.upstream.accept()
        await settle()
        for text in ("Hel", "lo"):
            api.upstream.speak(text)
            await settle()
        api.upstream.finish(completion_tokens=2)
        await driver.done()
        assert driver.is_over and not api.upstream.cancels
        api.assert_quiet()
        answers.append((driver.status, driver.headers, driver.body))
    assert answers[0] == answers[1]


@of_the_lab
@pytest.mark.parametrize("stream", [True, False])
async def test_a_rejection_is_a_plain_error(response: LabResponse, stream: bool) -> None:
    """With its own status."""
    api, driver = await opened(response, stream=stream)
    api.upstream.reject(Refusal(status=400, code="context_length_exceeded", message="Too long."))
    await driver.done()
    assert (driver.status, json.loads(driver.body)["error"]["code"]) == (400, "context_length_exceeded")
    api.assert_quiet()


@pytest.mark.parametrize(
    ("response", "stream", "is_cancelled"),
    [("starlette", True, True), ("starlette", False, False), ("write-only", True, False), ("write-only", False, False)],
)
async def test_who_does_not_listen_computes_to_the_end(response: LabResponse, stream: bool, is_cancelled: bool) -> None:
    """A stream of the framework listens; its plain answer does not, and what only writes never does."""
    api, driver = await opened(response, stream=stream)
    api.upstream.accept()
    api.upstream.speak("x")
    await settle()
    driver.vanish()
    await settle()
    assert api.upstream.cancels == ([Cancel((1,), FinishReason.DISCONNECTED)] if is_cancelled else [])
    for cancel in api.upstream.cancels:
        api.upstream.end_cancelled(cancel)
    if not is_cancelled:
        api.upstream.speak("y")
        api.upstream.finish(completion_tokens=2)
    await driver.done()
    api.assert_quiet()


@of_the_lab
async def test_a_stream_that_is_ended_before_its_head_is_no_success(response: LabResponse) -> None:
    """A client that waits for a head gets one that says why there is no more."""
    api, driver = await opened(response, stream=True)
    api.hub.drain()
    for answer in api.hub.streams:
        api.hub.cancel(answer, lambda: None)
    await driver.done()
    assert driver.status >= 400
    api.upstream.end_cancelled(api.upstream.cancels[0])
    api.assert_quiet()


async def test_nothing_is_written_to_a_reader_that_was_left_before_its_head() -> None:
    """The task ends all the same."""
    api, driver = await opened("starlette", stream=True)
    (answer,) = api.hub.streams
    ((reader_id, writer),) = answer.readers.items()
    api.hub.delivery.leave(answer, reader_id)
    writer.wake()
    await driver.done()
    assert driver.sent == [] and len(api.upstream.cancels) == 1
