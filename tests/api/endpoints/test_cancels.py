"""Cancellations: each is carried out once, waited for and remembered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluiceway.api.endpoints.cancels import Cancels
from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_api import Finished
from sluiceway.ipc.messages.to_engine import ToEngine
from sluiceway.ipc.messages.to_tokenizer import Prompt
from sluiceway.protocols.native.streams import Receipt, receipt_body
from sluiceway.tokenizer.prompts import Encoded
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.translator import Translator
from sluiceway.types import FinishReason, Held
from support.asgi_driver import Api, AsgiDriver, completion, settle

PATH = "/v1/completions"


async def opened(api: Api, stream_id: str = "s", **fields: Any) -> AsgiDriver:
    """A stream with this id and two tokens."""
    driver = AsgiDriver(api.app, "POST", PATH, completion(stream=True, sluiceway={"stream_id": stream_id}, **fields))
    n_before = len(api.upstream.requests)
    driver.start()
    await settle(lambda: len(api.upstream.requests) > n_before)
    return driver


def generate(api: Api) -> None:
    api.upstream.accept()
    api.upstream.speak("a")
    api.upstream.speak("b")


def release(api: Api, *held: Held | None) -> None:
    """The engine confirms the last cancellation."""
    (cancel,) = api.upstream.cancels[-1:]
    for rid, one in zip(cancel.rids, held, strict=True):
        api.upstream.say(Finished(rid=rid, reason=FinishReason.CANCELLED, completion_tokens=2, held=one))


async def cancelled(api: Api, cancels: Cancels, stream_id: str, held: Held) -> Receipt:
    asked = asyncio.create_task(cancels.cancel(stream_id, ""))
    await settle()
    release(api, held)
    return await asked


async def refused(cancels: Cancels, stream_id: str, caller: str = "") -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        await cancels.cancel(stream_id, caller)
    return caught.value.refusal.status, caught.value.refusal.code


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def cancels(api: Api) -> Cancels:
    return Cancels(api.dispatcher, max_receipts=2)


async def test_receipt_comes_when_everything_is_released(api: Api, cancels: Cancels) -> None:
    """It has the earlier state and the time. The reader gets the reason."""
    driver = await opened(api, n=2)
    generate(api)
    await settle(lambda: len(driver.writes) > 1)
    asked = asyncio.create_task(cancels.cancel("s", ""))
    await settle(lambda: api.upstream.cancels)
    await settle()
    assert not asked.done()
    api.now_s = 0.25
    release(api, Held("running", 3), Held("paused", 2))
    receipt = await asked
    assert (receipt.found, receipt.held, receipt.release_s) == ("open", [Held("running", 3), Held("paused", 2)], 0.25)
    assert (receipt.record.stream_id, receipt.record.reason) == ("s", "cancelled")
    assert (receipt.record.generated_tokens, receipt.record.completion_tokens) == (2, 2)
    await driver.done()
    assert '"code":"cancelled"' in driver.events[-2] and driver.events[-1] == "[DONE]"
    api.assert_quiet()


async def test_receipt_is_the_same_when_it_is_asked_for_again(api: Api, cancels: Cancels) -> None:
    """The caller may ask during the cancellation and after it. The engine gets one message."""
    driver = await opened(api)
    generate(api)
    asked = [asyncio.create_task(cancels.cancel("s", "")) for _ in range(3)]
    await settle(lambda: api.upstream.cancels)
    asked[0].cancel()
    release(api, Held("running", 1))
    first, second = await asyncio.gather(*asked[1:])
    assert first is second is await cancels.cancel("s", "")
    assert len(api.upstream.cancels) == 1
    await driver.done()
    assert await cancels.cancel("s", "") is first, "also when nothing but its record is left"


async def test_stream_is_cancelled_when_it_has_no_token_yet(api: Api, cancels: Cancels) -> None:
    """Its head was not sent, so its client gets an error status."""
    driver = await opened(api)
    asked = asyncio.create_task(cancels.cancel("s", ""))
    await settle(lambda: api.upstream.cancels)
    release(api, Held("encoding", 0))
    assert (await asked).held == [Held("encoding", 0)]
    assert (await driver.done()).status == 499
    assert await cancels.cancel("s", "") is asked.result()


async def test_receipt_leaves_out_choices_that_had_finished(api: Api, cancels: Cancels) -> None:
    """They had released their blocks before."""
    driver = await opened(api, n=2)
    generate(api)
    rids = api.upstream.requests[-1].rids
    api.upstream.say(Finished(rid=rids[0], reason=FinishReason.STOP, completion_tokens=1, held=Held("running", 7)))
    receipt = await cancelled(api, cancels, "s", Held("waiting", 2))
    assert receipt.held == [Held("waiting", 2)]
    await driver.done()


async def test_an_ended_stream_cannot_be_cancelled(api: Api, cancels: Cancels) -> None:
    """It had finished, or its client had left."""
    api.upstream.script = ["a"]
    await (await opened(api, "one")).done()
    assert await refused(cancels, "one") == (409, "stream_ended")
    api.upstream.script = None
    driver = await opened(api, "two")
    driver.vanish()
    await driver.done()
    assert await refused(cancels, "two") == (409, "stream_ended")


async def test_stream_of_another_caller_is_not_found(api: Api, cancels: Cancels) -> None:
    """The answer is the same as for an unknown stream, and the stream goes on."""
    driver = await opened(api)
    assert await refused(cancels, "t") == await refused(cancels, "s", "somebody") == (404, "stream_not_found")
    assert api.upstream.cancels == []
    driver.vanish()
    await driver.done()


async def test_a_timeout_is_reported_when_the_engine_does_not_answer(api: Api) -> None:
    """A later call gets the receipt."""
    cancels = Cancels(api.dispatcher, max_receipts=2, timeout_s=0.0)
    driver = await opened(api)
    generate(api)
    assert await refused(cancels, "s") == (504, "release_timeout")
    release(api, Held("running", 1))
    cancels.timeout_s = 600.0
    assert (await cancels.cancel("s", "")).held == [Held("running", 1)]
    await driver.done()


async def test_receipt_is_of_the_later_stream_when_an_id_is_used_again(api: Api, cancels: Cancels) -> None:
    """The first stream has ended, so its id is free."""
    receipts = list[Receipt]()
    for n in (1, 2):
        api.now_s = float(n)
        driver = await opened(api)
        receipts.append(await cancelled(api, cancels, "s", Held("waiting", 0)))
        await driver.done()
    assert [receipt.record.opened_s for receipt in receipts] == [1.0, 2.0]


async def test_oldest_receipt_is_forgotten_when_there_are_too_many(api: Api, cancels: Cancels) -> None:
    """Then a call only learns that the stream has ended."""
    for stream_id in ("a", "b", "c"):
        driver = await opened(api, stream_id)
        generate(api)
        await cancelled(api, cancels, stream_id, Held("running", 1))
        await driver.done()
    assert await refused(cancels, "a") == (409, "stream_ended")
    assert (await cancels.cancel("b", "")).record.stream_id == "b"


async def test_receipt_says_encoding_when_the_engine_does_not_know_it(api: Api, cancels: Cancels) -> None:
    """The tokenizer answers. The result of its thread is dropped."""
    encodings: list[Callable[[], None]] = []
    told: list[ToEngine] = []

    def encode(prompts: Sequence[Prompt], done: Callable[[Encoded], None]) -> Callable[[], object]:
        encodings.append(lambda: done([[1]] * len(prompts)))
        return lambda: None

    translator = Translator(
        ByteTokenizer(),
        to_api=api.dispatcher.receive,
        to_engine=told.append,
        encode=encode,
    )
    driver = await opened(api, n=2)
    translator.tokenize(api.upstream.requests[-1])
    asked = asyncio.create_task(cancels.cancel("s", ""))
    await settle(lambda: api.upstream.cancels)
    assert not asked.done() and len(encodings) == 1
    translator.cancel(api.upstream.cancels[-1])
    receipt = await asked
    assert json.loads(receipt_body(receipt))["sequences"] == [{"state": "encoding", "blocks": 0}] * 2
    assert (receipt.found, receipt.record.generated_tokens) == ("open", 0)
    assert (await driver.done()).status == 499
    encodings[0]()
    assert told == [] and (translator.n_encoding, translator.n_decoding) == (0, 0)
    api.assert_quiet()
