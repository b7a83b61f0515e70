"""A whole check: of our own server, and what becomes of questions that a server does not survive."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from sluiceway.lab.check.card import CheckRecord
from sluiceway.lab.check.peer import CheckConfig, Peer
from sluiceway.lab.check.question import Finding, Question, Verdict
from sluiceway.lab.check.registry import QUESTIONS
from sluiceway.lab.check.session import CheckSession, finding
from sluiceway.lab.load.calls import Target
from sluiceway.lab.load.record import SCHEMA
from sluiceway.lab.load.replies import LoadError
from support.model_server import SMALL, model_server, peer_of
from support.server import Server

OWN = CheckConfig(streams=4, tokens=24, long_tokens=600, burst=100, timeout_s=60.0)
NEVER_FAILS = {question.name for question in QUESTIONS} - {"slow-reader"}
"""On any machine; how much slower others are beside a reader that stops is a matter of time."""
UNKNOWN = {"silence", "characters"}
"""The fake model is quick, and speaks ASCII."""


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_our_own_server_fails_nothing() -> None:
    """Every question has an answer; those that do not depend on time have theirs."""
    lines: list[str] = []
    with Server("fake", "--fake-step", "0.004") as server:
        session = CheckSession(
            target=Target("127.0.0.1", server.port),
            questions=QUESTIONS,
            config=OWN,
            pid=server.process.pid,
            drain_pid=server.process.pid,
            command=["sluiceway", "check"],
        )
        record = session.run(lines.append)
        assert server.wait_exit() == 0
    verdicts = {found.question: found.verdict for found in record.findings}
    assert list(verdicts) == [question.name for question in QUESTIONS] and len(lines) == len(QUESTIONS)
    assert {name for name in NEVER_FAILS if verdicts[name] is Verdict.FAIL} == set(), record.findings
    certain = {"isolation", "terminal", "stop-strings", "connections", "bad-requests", "overload", "drain"}
    assert {verdicts[name] for name in certain} == {Verdict.PASS}, record.findings
    assert {verdicts[name] for name in UNKNOWN} == {Verdict.UNKNOWN}
    assert msgspec.json.decode(msgspec.json.encode(record), type=CheckRecord) == record
    assert (record.schema, record.subjects[0].kind, record.config["burst"]) == (SCHEMA, "sluiceway", 100)


async def test_question_that_breaks_off_has_failed() -> None:
    """The sentence is that of the fault."""

    async def breaks(peer: Peer) -> Finding:
        raise LoadError("the server broke off its answer")

    async with model_server() as (script, _):
        found = await finding(Question("x", "?", breaks), await peer_of(script))
    assert found == Finding(Verdict.FAIL, "the server broke off its answer")


async def test_question_that_takes_too_long_has_no_answer() -> None:
    """Each request in it has a limit of its own, so the server did answer. The flag is named."""

    async def hangs(peer: Peer) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.05)
        peer = dataclasses.replace(await peer_of(script), config=hurried)
        found = await finding(Question("x", "?", hangs), peer)
    assert found.verdict is Verdict.UNKNOWN
    assert found.sentence == "it was not over after 0.05 s: the server is too slow for that (--timeout)"
