"""What comes before the first token."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from sluiceway_lab.check import first_byte
from sluiceway_lab.check.first_byte import HEADERS, SILENCE, enough_to_wait, judge_headers, judge_silence
from sluiceway_lab.check.question import Question
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, ask, context_of, model_server


async def test_early_headers_pass() -> None:
    found = await ask(HEADERS)
    assert found.grade is Grade.PASS and found.figures["headers_s"] < found.figures["first_token_s"]


async def test_headers_with_the_first_token_are_worth_a_warning() -> None:
    found = await ask(HEADERS, "late headers")
    assert found.grade is Grade.WARN and "at 100% of the wait" in found.sentence


async def test_silence_is_measured() -> None:
    found = await ask(SILENCE)
    assert found.grade is Grade.UNKNOWN and found.figures["longest_silence_s"] > 0


@pytest.mark.parametrize("question", [HEADERS, SILENCE], ids=["first-byte", "silence"])
async def test_server_that_says_nothing_for_long_cannot_be_judged(question: Question) -> None:
    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.2)
        context = dataclasses.replace(await context_of(script), config=hurried)
        script.slots = 0
        assert (await question.ask(context)).grade is Grade.UNKNOWN


@pytest.mark.parametrize("question", [HEADERS, SILENCE], ids=["first-byte", "silence"])
async def test_server_that_refuses_long_prompts_cannot_be_judged(question: Question) -> None:
    async with model_server() as (script, _):
        context = await context_of(script)
        script.is_draining = True
        found = await question.ask(context)
    assert (found.grade, found.sentence) == (Grade.UNKNOWN, "none of the long prompts was served")


async def test_more_are_asked_where_few_do_not_wait_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here two hundredths of a second are long."""
    monkeypatch.setattr(first_byte, "_PATIENT_S", 0.08)
    monkeypatch.setattr(first_byte, "_LONG_ENOUGH_S", 0.2)
    async with model_server() as (script, _):
        script.slots, script.n_queued_most = 1, 512
        hurried = msgspec.structs.replace(SMALL, streams=1, tokens=4, prompt_words=100)
        found = await SILENCE.ask(await context_of(script, hurried))
    assert found.grade is Grade.WARN and found.figures["longest_silence_s"] > 0.08


def test_how_many_wait_long_enough() -> None:
    assert enough_to_wait(16, 10.0) == 32
    assert enough_to_wait(16, 40.0) is None  # it was enough
    assert enough_to_wait(16, 0.1) is enough_to_wait(16, 0.0) is None


def test_headers_cannot_be_judged_when_the_first_token_is_quick() -> None:
    assert judge_headers(0.001, 0.002, 0.01).grade is Grade.UNKNOWN


@pytest.mark.parametrize(
    ("longest_s", "n_comments", "grade"),
    [(20.0, 1, Grade.PASS), (20.0, 0, Grade.WARN), (2.0, 0, Grade.UNKNOWN)],
)
def test_long_silence_needs_comments(longest_s: float, n_comments: int, grade: Grade) -> None:
    assert judge_silence(longest_s, n_comments).grade is grade
