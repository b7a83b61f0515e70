"""Simultaneous streams, on a server that batches and on one that does not."""

from __future__ import annotations

from sluiceway_lab.check.overlap import QUESTION, judge, n_at_once
from sluiceway_lab.load.record import Grade
from support.model_server import ask
from support.transcripts import transcript


async def test_simultaneous_streams_pass() -> None:
    found = await ask(QUESTION)
    assert found.figures["streams_begun"] == 4 and found.grade in (Grade.PASS, Grade.WARN)


async def test_server_of_one_at_a_time_fails() -> None:
    found = await ask(QUESTION, "serial")
    assert found.grade is Grade.FAIL and found.sentence.startswith("1 of 4 streams had begun")


def test_few_simultaneous_streams_or_little_gain_are_a_warning() -> None:
    grades = [judge(n, 8, ratio).grade for n, ratio in ((8, 3.0), (4, 3.0), (8, 1.1), (1, 3.0))]
    assert grades == [Grade.PASS, Grade.WARN, Grade.WARN, Grade.FAIL]


def test_streams_count_that_began_before_the_first_end() -> None:
    said = [transcript("a", "b", at_s=0.0), transcript("a", "b", at_s=1.0), transcript("a", at_s=1.5), transcript()]
    assert n_at_once(said) == 2
    assert n_at_once([transcript()]) == 0
