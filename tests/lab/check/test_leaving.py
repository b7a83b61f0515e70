"""Clients that leave, on a server that notices and on one that does not."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from sluiceway_lab.check.context import FIRST_LOOKS_S
from sluiceway_lab.check.leaving import FIN, PLAIN, RST, WAITING, WASTE, judge, judge_waste, quiet_within
from sluiceway_lab.check.question import Question
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, ask, context_of, model_server

ALL = [FIN, RST, PLAIN, WAITING, WASTE]
NAMES = [question.name for question in ALL]


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
        script.running.append("somebody else's")
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
    assert judge(1, idle_s, rest_s, 60.0).grade is grade


def test_pause_never_changes_a_grade() -> None:
    assert quiet_within(7.9) == 0.0
    assert judge(1, FIRST_LOOKS_S + quiet_within(8.1), 8.1, 60.0).grade is Grade.PASS
    assert quiet_within(8.1) > 1.0


def test_waste_is_judged_by_what_was_left() -> None:
    grades = [judge_waste(4, 40, generated, 440).grade for generated in (60.0, 200.0, 440.0, 8.0)]
    assert grades == [Grade.PASS, Grade.WARN, Grade.FAIL, Grade.UNKNOWN]
