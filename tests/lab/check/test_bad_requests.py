"""Invalid requests."""

from __future__ import annotations

import pytest

from sluiceway_lab.check.bad_requests import QUESTION, judge
from sluiceway_lab.load.client import Reply
from sluiceway_lab.load.record import Grade
from support.model_server import ask, context_of, model_server


async def test_reasons_that_name_the_field_pass() -> None:
    found = await ask(QUESTION)
    assert found.grade is Grade.PASS and found.sentence.startswith("8 wrong requests on one connection")


async def test_server_that_takes_the_blame_fails() -> None:
    found = await ask(QUESTION, "crashes")
    assert found.grade is Grade.FAIL and "status 500" in found.sentence and "broken JSON" in found.sentence


async def test_closed_connection_is_worth_a_warning() -> None:
    found = await ask(QUESTION, "one shot")
    assert (found.grade, found.sentence) == (Grade.WARN, "7 times the connection was closed after a refusal")


async def test_server_that_is_gone_fails() -> None:
    async with model_server() as (script, server):
        context = await context_of(script)
        server.close()
        with pytest.raises(Exception, match="no answer from"):
            await QUESTION.ask(context)


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
    found = judge("stop", Reply(status, {}, [(0.0, body)], True))
    assert (None if found is None else found[0]) is grade
