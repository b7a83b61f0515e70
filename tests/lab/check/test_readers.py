"""What readers notice."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from sluiceway_lab.check import readers
from sluiceway_lab.check.question import FIRST_LOOKS_S, Question
from sluiceway_lab.check.readers import (
    CUT,
    FAILED,
    FIN,
    HEADERS,
    PLAIN,
    RST,
    SILENCE,
    SILENT,
    SLOW_READER,
    WAITING,
    WASTE,
    WHOLE,
    Stopped,
    enough_to_wait,
    judge_headers,
    judge_left,
    judge_silence,
    judge_slow,
    judge_waste,
    quiet_within,
)
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, ask, context_of, model_server

FINE = Stopped(end=WHOLE, unread_bytes=29_000, growth_bytes=None)
ALL = [FIN, RST, PLAIN, WAITING, WASTE]
NAMES = [question.name for question in ALL]


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
    monkeypatch.setattr(readers, "_PATIENT_S", 0.08)
    monkeypatch.setattr(readers, "_LONG_ENOUGH_S", 0.2)
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


async def test_others_who_notice_nothing_pass() -> None:
    found = await ask(SLOW_READER)
    assert found.grade is not Grade.FAIL and found.sentence.endswith(f"kB unread it read on and {WHOLE}")


async def test_others_who_wait_for_the_slowest_fail() -> None:
    found = await ask(SLOW_READER, "blocks")
    assert found.grade is Grade.FAIL and "the others failed: they had not ended" in found.sentence


@pytest.mark.parametrize(
    ("ratio", "stopped", "grade"),
    [
        (1.0, FINE, Grade.PASS),
        (2.0, FINE, Grade.WARN),
        (5.0, FINE, Grade.FAIL),
        (1.0, dataclasses.replace(FINE, end=FAILED), Grade.PASS),
        (1.0, dataclasses.replace(FINE, end=CUT), Grade.WARN),
        (1.0, dataclasses.replace(FINE, end=SILENT), Grade.FAIL),
        (1.0, dataclasses.replace(FINE, growth_bytes=1000), Grade.PASS),
        (1.0, dataclasses.replace(FINE, growth_bytes=100_000_000), Grade.WARN),
    ],
)
def test_grade(ratio: float, stopped: Stopped, grade: Grade) -> None:
    assert judge_slow(7, ratio, stopped).grade is grade


def test_memory_is_reported_if_it_is_known() -> None:
    found = judge_slow(7, 1.03, dataclasses.replace(FINE, growth_bytes=400_000))
    assert found.sentence == (
        "7 healthy streams next to a stopped reader took 1.03 x; "
        f"with 29 kB unread it read on and {WHOLE}; the server's memory grew by 0.4 MB"
    )
    assert found.figures == {"healthy_ratio": 1.03, "unread_bytes": 29_000.0, "rss_growth_bytes": 400_000.0}


@pytest.mark.parametrize("question", ALL, ids=NAMES)
async def test_server_that_looks_passes(question: Question) -> None:
    assert (await ask(question)).grade is Grade.PASS


@pytest.mark.parametrize("question", ALL, ids=NAMES)
async def test_server_that_runs_on_fails(question: Question) -> None:
    assert (await ask(question, "runs on")).grade is Grade.FAIL


@pytest.mark.parametrize("question", ALL, ids=NAMES)
async def test_server_without_gauges_cannot_be_judged(question: Question) -> None:
    async with model_server() as (script, _):
        context = await context_of(script)
        blind = dataclasses.replace(context, server=dataclasses.replace(context.server, kind=None))
        found = await question.ask(blind)
    assert found.grade is Grade.UNKNOWN and "no gauges" in found.sentence


async def test_server_that_others_use_cannot_be_judged() -> None:
    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.4)
        context = dataclasses.replace(await context_of(script), config=hurried)
        script.running.append("of another client")
        found = await FIN.ask(context)
    assert found.grade is Grade.UNKNOWN and "other clients use it" in found.sentence


@pytest.mark.parametrize(
    ("idle_s", "rest_s", "grade"),
    [
        (0.1, 3.0, Grade.PASS),
        (1.5, 3.0, Grade.WARN),
        (2.9, 3.0, Grade.FAIL),
        (None, 3.0, Grade.FAIL),
        (0.1, 0.2, Grade.UNKNOWN),
        (0.01, 0.2, Grade.PASS),
    ],
)
def test_time_is_judged_by_what_was_left(idle_s: float | None, rest_s: float, grade: Grade) -> None:
    assert judge_left(1, idle_s, rest_s, 60.0).grade is grade


def test_pause_never_changes_a_grade() -> None:
    assert quiet_within(7.9) == 0.0
    assert judge_left(1, FIRST_LOOKS_S + quiet_within(8.1), 8.1, 60.0).grade is Grade.PASS
    assert quiet_within(8.1) > 1.0


def test_waste_is_judged_by_what_was_left() -> None:
    grades = [judge_waste(4, 40, generated, 440).grade for generated in (60.0, 200.0, 440.0, 8.0)]
    assert grades == [Grade.PASS, Grade.WARN, Grade.FAIL, Grade.UNKNOWN]
