"""Answers alone and in a batch."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.isolation import QUESTION, first_difference, judge
from sluiceway_lab.load.record import Grade
from support.model_server import ask

ALONE = ["the old man went down to the river", "a ship was full of fish and bread so"]


async def test_same_answers_pass() -> None:
    found = await ask(QUESTION)
    assert (found.grade, found.sentence) == (Grade.PASS, "2 of 2 greedy answers were the same in a batch")


async def test_text_of_a_neighbour_fails() -> None:
    found = await ask(QUESTION, "mixes")
    assert found.grade is Grade.FAIL and "text of another answer" in found.sentence


def test_answers_that_part_are_worth_a_warning() -> None:
    found = judge(ALONE, [ALONE[0], "a sheep"], [ALONE[0], "a ship was empty"], 0)
    assert found.grade is Grade.WARN
    assert found.sentence.startswith("1 of 2 greedy answers differed in a batch, the first after 11 characters; 1 were")


def test_stream_with_events_of_several_ids_fails() -> None:
    assert judge(ALONE, ALONE, ALONE, 1).grade is Grade.FAIL


@pytest.mark.parametrize(("left", "right", "place"), [("ab", "ab", None), ("ab", "ac", 1), ("ab", "abc", 2)])
def test_first_difference(left: str, right: str, place: int | None) -> None:
    assert first_difference(left, right) == place
