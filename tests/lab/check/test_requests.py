"""How requests are answered."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal

import msgspec
import pytest

from sluiceway_lab.check.question import Finding, Silence
from sluiceway_lab.check.requests import (
    BAD_REQUESTS,
    CONNECTIONS,
    DRAIN,
    OVERLOAD,
    answer_tokens,
    judge_drain,
    judge_overload,
    judge_refusal,
    outcome_of,
)
from sluiceway_lab.load.client import LoadError, Outcome, Recording, Reply
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, Fault, ask, context_of, model_server
from support.scripted_http import chunk, completion_stream, event, plain, stream, token

RETRY = b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


async def test_connection_that_goes_on_passes() -> None:
    assert (await ask(CONNECTIONS)).grade is Grade.PASS


async def test_connection_that_ends_without_notice_is_worth_a_warning() -> None:
    found = await ask(CONNECTIONS, "one shot")
    assert found.grade is Grade.WARN
    assert "after a plain answer: the server had closed the connection without announcing it" in found.sentence


async def test_connection_that_ends_with_notice_is_worth_a_warning() -> None:
    found = await ask(CONNECTIONS, "says close")
    assert found.grade is Grade.WARN and "after a stream: the server closes after each answer" in found.sentence


async def test_second_request_without_an_answer_fails() -> None:
    async with model_server("deaf") as (script, _):
        context = dataclasses.replace(await context_of(script), config=msgspec.structs.replace(SMALL, timeout_s=0.4))
        found = await CONNECTIONS.ask(context)
    assert found.grade is Grade.FAIL
    assert found.sentence.startswith("a request after a plain answer: the server did not answer within 0.2 s")


async def test_reasons_that_name_the_field_pass() -> None:
    found = await ask(BAD_REQUESTS)
    assert found.grade is Grade.PASS and found.sentence.startswith("8 wrong requests on one connection")


async def test_server_that_takes_the_blame_fails() -> None:
    found = await ask(BAD_REQUESTS, "crashes")
    assert found.grade is Grade.FAIL and "status 500" in found.sentence and "broken JSON" in found.sentence


async def test_closed_connection_is_worth_a_warning() -> None:
    found = await ask(BAD_REQUESTS, "one shot")
    assert (found.grade, found.sentence) == (Grade.WARN, "7 times the connection was closed after a refusal")


async def test_server_that_is_gone_fails() -> None:
    async with model_server() as (script, server):
        context = await context_of(script)
        server.close()
        with pytest.raises(Exception, match="no answer from"):
            await BAD_REQUESTS.ask(context)


@pytest.mark.parametrize(
    ("status", "body", "grade"),
    [
        (400, b'{"error": {"message": "`stop` is no text"}}', None),
        (400, b'{"error": {"message": "no", "param": "stop"}}', None),
        (422, b'{"message": "stop"}', None),
        (400, b'{"error": {"message": "no"}}', Grade.WARN),
        (200, b"{}", Grade.WARN),
        (400, b'{"error": "no"}', Grade.FAIL),
        (400, b"no", Grade.FAIL),
        (400, b"[]", Grade.FAIL),
        (500, b'{"error": {"message": "stop"}}', Grade.FAIL),
    ],
)
def test_refusal_is_judged(status: int, body: bytes, grade: Grade | None) -> None:
    found = judge_refusal("stop", Reply(status, {}, [(0.0, body)], True))
    assert (None if found is None else found[0]) is grade


async def test_refusals_with_a_time_pass() -> None:
    found = await ask(OVERLOAD)
    assert found.grade is Grade.PASS and found.figures["refused"] > 0 < found.figures["served"]


async def test_connections_without_an_answer_fail() -> None:
    found = await ask(OVERLOAD, "resets")
    assert found.grade is Grade.FAIL and "of 40 simultaneous requests: the server closed" in found.sentence


def recording(*raw: bytes) -> Recording:
    return Recording(0.0, [(1.0, one) for one in raw], 2.0)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (recording(*completion_stream(2)), "served"),
        (recording(RETRY), "refused"),
        (recording(plain(429, b"")), "refused without retry-after"),
        (recording(plain(500, b"oh")), "the server refused (500): oh"),
        (recording(*stream(token("a"), event({"error": {"message": "no"}}))), "an error in the stream"),
        (recording(*stream(token("a"))[:-1], chunk(token("b"))), "the answer broke off"),
        (LoadError("reset"), "reset"),
        (Silence("nothing for 1 s"), "waited without an answer"),
    ],
)
def test_outcome_has_one_word(outcome: Outcome, word: str) -> None:
    assert outcome_of(outcome) == word


def test_refusal_without_a_time_is_worth_a_warning() -> None:
    assert judge_overload(["served", "refused without retry-after"], is_moving=False).grade is Grade.WARN
    assert judge_overload(["refused", "refused"], is_moving=False).grade is Grade.FAIL


def test_long_queue_differs_from_a_hang() -> None:
    outcomes = ["served", "waited without an answer"]
    assert judge_overload(outcomes, is_moving=True).grade is Grade.WARN
    hung = judge_overload(outcomes, is_moving=False)
    assert (hung.grade, hung.sentence) == (Grade.FAIL, "1 of 2 simultaneous requests: waited without an answer")


def test_answers_are_as_long_as_the_pace_allows() -> None:
    assert [answer_tokens(640, itl_s) for itl_s in (0.0, 0.03, 1.0)] == [256, 8, 4]


async def drained(fault: Fault | None) -> Finding:
    """The signal goes to this process, which runs the server."""
    loop = asyncio.get_running_loop()
    async with model_server(fault) as (script, server):
        loop.add_signal_handler(signal.SIGTERM, script.drain, server)
        try:
            return await DRAIN.ask(await context_of(script, drain_pid=os.getpid()))
        finally:
            loop.remove_signal_handler(signal.SIGTERM)


async def test_streams_that_end_well_pass() -> None:
    found = await drained(None)
    assert found.grade is Grade.PASS and found.sentence.startswith("4 of 4 running streams ended whole")


async def test_streams_that_are_cut_fail() -> None:
    found = await drained("dies")
    assert found.grade is Grade.FAIL and found.sentence.startswith("4 of 4 streams were cut off without an error")


async def test_nothing_is_ended_unasked() -> None:
    found = await ask(DRAIN)
    assert found.grade is Grade.UNKNOWN and "--drain-pid" in found.sentence


@pytest.mark.parametrize(
    ("ends", "newcomer", "gone_s", "grade"),
    [
        (["served", "an error in the stream"], "refused", 1.0, Grade.PASS),
        (["served"], "no answer from http://h", 1.0, Grade.PASS),
        (["served"], "served", 1.0, Grade.WARN),
        (["served"], "the answer broke off", 1.0, Grade.WARN),
        (["served"], "refused", None, Grade.FAIL),
        (["the answer broke off"], "refused", 1.0, Grade.FAIL),
    ],
)
def test_end_is_judged(ends: list[str], newcomer: str, gone_s: float | None, grade: Grade) -> None:
    assert judge_drain(ends, newcomer, gone_s).grade is grade
