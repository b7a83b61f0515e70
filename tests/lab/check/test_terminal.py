"""How a stream ends."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.terminal import QUESTION, blemishes_of, faults_of
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import Transcript
from support.model_server import ask
from support.transcripts import DONE, said, told

USAGE = {"id": "a", "choices": [], "usage": {"completion_tokens": 2}}
GOOD = told(said("a"), said("b", "stop"), USAGE, DONE)


async def test_orderly_end_passes() -> None:
    found = await ask(QUESTION)
    assert found.grade is Grade.PASS and found.sentence.startswith("2 streams (at the length, at a stop string)")


async def test_missing_end_fails() -> None:
    found = await ask(QUESTION, "no done")
    assert (found.grade, found.sentence) == (Grade.FAIL, "no [DONE] (at the length, at a stop string)")


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (told(said("a"), USAGE, DONE), "0 finish reasons"),
        (told(said("a", "stop"), said("", "stop"), USAGE, DONE), "2 finish reasons"),
        (told(said("", "stop"), said("b"), USAGE, DONE), "text after the finish reason"),
        (told(said("a", "stop"), USAGE), "no [DONE]"),
        (told(said("a", "stop"), USAGE, DONE, said()), "1 events after [DONE]"),
        (told(said("a", "stop"), USAGE, DONE, is_whole=False), "the body breaks off without the last chunk"),
        (told(said("a", "stop"), DONE), "no usage, which was asked for"),
        (told(said("a", "stop"), {"error": {"message": "no"}}, USAGE, DONE), "an error: no"),
    ],
)
def test_fault_is_found(stream: Transcript, fault: str) -> None:
    assert faults_of(stream, wants_usage=True) == [fault]


def test_good_stream_has_no_fault() -> None:
    assert faults_of(GOOD, wants_usage=True) == blemishes_of(GOOD, wants_usage=True) == []
    assert faults_of(told(said("a", "stop"), DONE), wants_usage=False) == []


def test_oddities_are_worth_a_warning() -> None:
    stream = told(said("a", id="b"), said("b", "stop", usage={"completion_tokens": 2}), DONE)
    assert blemishes_of(stream, wants_usage=True) == [
        "2 different ids",
        "the usage is not in an event of its own before [DONE]",
    ]
