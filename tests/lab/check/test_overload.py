"""Too many requests at the same time."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.context import Silence
from sluiceway_lab.check.overload import QUESTION, answer_tokens, judge, outcome_of
from sluiceway_lab.load.client import LoadError, Recording
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.streams import Outcome
from support.model_server import ask
from support.scripted_http import chunk, completion_stream, event, plain, stream, token


async def test_refusals_with_a_time_pass() -> None:
    found = await ask(QUESTION)
    assert found.grade is Grade.PASS and found.figures["refused"] > 0 < found.figures["served"]


async def test_connections_without_an_answer_fail() -> None:
    found = await ask(QUESTION, "resets")
    assert found.grade is Grade.FAIL and "of 40 simultaneous requests: the server closed" in found.sentence


def recording(*raw: bytes) -> Recording:
    return Recording(0.0, [(1.0, one) for one in raw], 2.0)


RETRY = b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


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
    assert judge(["served", "refused without retry-after"], is_moving=False).grade is Grade.WARN
    assert judge(["refused", "refused"], is_moving=False).grade is Grade.FAIL


def test_long_queue_differs_from_a_hang() -> None:
    outcomes = ["served", "waited without an answer"]
    assert judge(outcomes, is_moving=True).grade is Grade.WARN
    hung = judge(outcomes, is_moving=False)
    assert (hung.grade, hung.sentence) == (Grade.FAIL, "1 of 2 simultaneous requests: waited without an answer")


def test_answers_are_as_long_as_the_pace_allows() -> None:
    assert [answer_tokens(640, itl_s) for itl_s in (0.0, 0.03, 1.0)] == [256, 8, 4]
