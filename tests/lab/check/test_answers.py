"""What answers say: several at the same time, their ends, their characters, and where they stop."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.answers import (
    CHARACTERS,
    ISOLATION,
    OVERLAP,
    STOPS,
    TERMINAL,
    blemishes_of,
    broken_pieces,
    faults_of,
    judge_isolation,
    judge_overlap,
    leaks_of,
    lost,
    n_overlapping,
    stops_across,
)
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import Transcript
from support.model_server import ask
from support.transcripts import DONE, event_of, stream_of, transcript

ALONE = ["the old man went down to the river", "a ship was full of fish and bread so"]
USAGE = {"id": "a", "choices": [], "usage": {"completion_tokens": 2}}
GOOD = stream_of(event_of("a"), event_of("b", "stop"), USAGE, DONE)


async def test_simultaneous_streams_pass() -> None:
    found = await ask(OVERLAP)
    assert found.figures["streams_begun"] == 4 and found.grade in (Grade.PASS, Grade.WARN)


async def test_server_of_one_at_a_time_fails() -> None:
    found = await ask(OVERLAP, "serial")
    assert found.grade is Grade.FAIL and found.sentence.startswith("1 of 4 streams had begun")


def test_few_simultaneous_streams_or_little_gain_are_a_warning() -> None:
    grades = [judge_overlap(n, 8, ratio).grade for n, ratio in ((8, 3.0), (4, 3.0), (8, 1.1), (1, 3.0))]
    assert grades == [Grade.PASS, Grade.WARN, Grade.WARN, Grade.FAIL]


def test_streams_count_that_began_before_the_first_end() -> None:
    event_of = [transcript("a", "b", at_s=0.0), transcript("a", "b", at_s=1.0), transcript("a", at_s=1.5), transcript()]
    assert n_overlapping(event_of) == 2
    assert n_overlapping([transcript()]) == 0


async def test_same_answers_pass() -> None:
    found = await ask(ISOLATION)
    assert (found.grade, found.sentence) == (Grade.PASS, "2 of 2 greedy answers were the same in a batch")


async def test_text_of_a_neighbour_fails() -> None:
    found = await ask(ISOLATION, "mixes")
    assert found.grade is Grade.FAIL and "text of another answer" in found.sentence


def test_answers_that_part_are_worth_a_warning() -> None:
    found = judge_isolation(ALONE, [ALONE[0], "a sheep"], [ALONE[0], "a ship was empty"], 0)
    assert found.grade is Grade.WARN
    assert found.sentence.startswith("1 of 2 greedy answers differed in a batch, the first after 11 characters; 1 were")


def test_stream_with_events_of_several_ids_fails() -> None:
    assert judge_isolation(ALONE, ALONE, ALONE, 1).grade is Grade.FAIL


@pytest.mark.parametrize(("left", "right", "place"), [("ab", "ab", None), ("ab", "ac", 1), ("ab", "abc", 2)])
def test_first_difference_is_reported(left: str, right: str, place: int | None) -> None:
    assert judge_isolation([left], [left], [right], 0).figures.get("first_difference") == place


async def test_orderly_end_passes() -> None:
    found = await ask(TERMINAL)
    assert found.grade is Grade.PASS and found.sentence.startswith("2 streams (at the length, at a stop string)")


async def test_missing_end_fails() -> None:
    found = await ask(TERMINAL, "no done")
    assert (found.grade, found.sentence) == (Grade.FAIL, "no [DONE] (at the length, at a stop string)")


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (stream_of(event_of("a"), USAGE, DONE), "0 finish reasons"),
        (stream_of(event_of("a", "stop"), event_of("", "stop"), USAGE, DONE), "2 finish reasons"),
        (stream_of(event_of("", "stop"), event_of("b"), USAGE, DONE), "text after the finish reason"),
        (stream_of(event_of("a", "stop"), USAGE), "no [DONE]"),
        (stream_of(event_of("a", "stop"), USAGE, DONE, event_of()), "1 events after [DONE]"),
        (stream_of(event_of("a", "stop"), USAGE, DONE, is_whole=False), "the body breaks off without the last chunk"),
        (stream_of(event_of("a", "stop"), DONE), "no usage, which was asked for"),
        (stream_of(event_of("a", "stop"), {"error": {"message": "no"}}, USAGE, DONE), "an error: no"),
    ],
)
def test_fault_is_found(stream: Transcript, fault: str) -> None:
    assert faults_of(stream, wants_usage=True) == [fault]


def test_good_stream_has_no_fault() -> None:
    assert faults_of(GOOD, wants_usage=True) == blemishes_of(GOOD, wants_usage=True) == []
    assert faults_of(stream_of(event_of("a", "stop"), DONE), wants_usage=False) == []


def test_oddities_are_worth_a_warning() -> None:
    stream = stream_of(event_of("a", id="b"), event_of("b", "stop", usage={"completion_tokens": 2}), DONE)
    assert blemishes_of(stream, wants_usage=True) == [
        "2 different ids",
        "the usage is not in an event of its own before [DONE]",
    ]


async def test_whole_characters_pass() -> None:
    found = await ask(CHARACTERS)
    assert found.grade is Grade.PASS and "characters beyond ASCII" in found.sentence


async def test_halves_fail() -> None:
    found = await ask(CHARACTERS, "half characters")
    assert found.grade is Grade.FAIL and "replacement characters in the stream" in found.sentence


def test_nonsense_of_the_model_is_no_fault() -> None:
    """Broken characters of the complete answer are the model's; half of a surrogate pair is always a fault."""
    assert broken_pieces(transcript("a", "\ufffd"), "a\ufffd") == []
    assert broken_pieces(transcript("a\ufffd", "\ufffd"), "a\ufffd") != []
    assert broken_pieces(transcript("\ud83d"), "\ud83d") == ["half of a surrogate pair"]


async def test_text_that_ends_before_the_stop_string_passes() -> None:
    found = await ask(STOPS)
    assert (found.grade, found.sentence[:15]) == (Grade.PASS, "2 stop strings ")


async def test_leak_fails() -> None:
    found = await ask(STOPS, "leaks stop")
    assert found.grade is Grade.FAIL and "of the stop string" in found.sentence and "whole:" not in found.sentence


async def test_lost_end_fails() -> None:
    found = await ask(STOPS, "loses its end")
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
    assert leaks_of("streamed", text, "abc", "xy") == faults
