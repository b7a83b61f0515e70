"""Stop strings across the borders of pieces."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.stop_strings import QUESTION, faults_of, lost, stops_across
from sluiceway_lab.load.record import Grade
from support.model_server import ask
from support.transcripts import transcript


async def test_text_that_ends_before_the_stop_string_passes() -> None:
    found = await ask(QUESTION)
    assert (found.grade, found.sentence[:15]) == (Grade.PASS, "2 stop strings ")


async def test_leak_fails() -> None:
    found = await ask(QUESTION, "leaks stop")
    assert found.grade is Grade.FAIL and "of the stop string" in found.sentence and "whole:" not in found.sentence


async def test_lost_end_fails() -> None:
    found = await ask(QUESTION, "loses its end")
    assert found.grade is Grade.FAIL
    assert found.sentence.startswith("the stream lost its last 2 characters ")


def test_other_differences_are_reported() -> None:
    assert lost("abcd", "ab") == "the stream lost its last 2 characters 'cd'"
    assert lost("abcd", "bcd") == "the stream has 3 characters and not 4"


def test_stops_lie_across_borders_in_the_middle() -> None:
    assert stops_across(transcript("one ", "two ", "three ", "four ").deltas) == ["o th", "o three fo"]
    assert stops_across(transcript("one ", "two ").deltas) == ["e tw"]
    assert stops_across(transcript("one ").deltas) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("abc", []),
        ("abcx", ["streamed: 1 characters of the stop string 'xy' leaked"]),
        ("ab", ["streamed: the answer has 2 characters and not the 3 before 'xy'"]),
    ],
)
def test_leaked_stop_string_differs_from_another_text(text: str, faults: list[str]) -> None:
    assert faults_of("streamed", text, "abc", "xy") == faults
