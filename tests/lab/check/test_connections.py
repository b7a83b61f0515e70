"""Several requests on a connection."""

from __future__ import annotations

import dataclasses

import msgspec

from sluiceway_lab.check.connections import QUESTION
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, ask, context_of, model_server


async def test_connection_that_goes_on_passes() -> None:
    assert (await ask(QUESTION)).grade is Grade.PASS


async def test_connection_that_ends_without_notice_is_worth_a_warning() -> None:
    found = await ask(QUESTION, "one shot")
    assert found.grade is Grade.WARN
    assert "after a plain answer: the server had closed the connection without announcing it" in found.sentence


async def test_connection_that_ends_with_notice_is_worth_a_warning() -> None:
    found = await ask(QUESTION, "says close")
    assert found.grade is Grade.WARN and "after a stream: the server closes after each answer" in found.sentence


async def test_second_request_without_an_answer_fails() -> None:
    async with model_server("deaf") as (script, _):
        context = dataclasses.replace(await context_of(script), config=msgspec.structs.replace(SMALL, timeout_s=0.4))
        found = await QUESTION.ask(context)
    assert found.grade is Grade.FAIL
    assert found.sentence.startswith("a request after a plain answer: the server did not answer within 0.2 s")
