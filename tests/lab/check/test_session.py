"""A whole check: of our own server, and what becomes of questions that a server does not survive."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Iterator

import msgspec
import pytest

from sluiceway_lab.check.card import CheckRecord
from sluiceway_lab.check.peer import CheckConfig, Peer
from sluiceway_lab.check.question import Finding, Question, Verdict
from sluiceway_lab.check.registry import QUESTIONS
from sluiceway_lab.check.session import CheckSession, finding
from sluiceway_lab.load.calls import Target
from sluiceway_lab.load.record import SCHEMA
from sluiceway_lab.load.replies import LoadError
from support.model_server import SMALL, model_server, peer_of
from support.server import Server

OWN = CheckConfig(streams=4, tokens=24, long_tokens=600, burst=100, timeout_s=60.0)
NEVER_FAILS = {question.name for question in QUESTIONS} - {"slow-reader"}
"""On any machine; how much slower others are beside a reader that stops is a matter of time."""
UNKNOWN = {"silence", "characters"}
"""The fake model is quick, and speaks ASCII."""


@pytest.mark.e2e
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
    assert list(verdicts) == [question.name for question in QUESTIONS] and len(lines) == 2 * len(QUESTIONS)
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
        found = await finding(Question("x", "?", breaks), await peer_of(script), 60.0)
    assert found == Finding(Verdict.FAIL, "the server broke off its answer")


@pytest.mark.parametrize(
    ("left_s", "sentence"),
    [
        (60.0, "it was not over after 0.05 s: the server is too slow for that (--timeout)"),
        (0.02, "it was not over when the time for all questions was (--total)"),
        (0.0, "not asked: the time for all questions is over (--total)"),
    ],
)
async def test_question_that_takes_too_long_has_no_answer(left_s: float, sentence: str) -> None:
    """Each request in it has a limit of its own, so the server did answer. The flag is named."""

    async def hangs(peer: Peer) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.05)
        peer = dataclasses.replace(await peer_of(script), config=hurried)
        found = await finding(Question("x", "?", hangs), peer, left_s)
    assert (found.verdict, found.sentence) == (Verdict.UNKNOWN, sentence)


def test_questions_are_announced_and_answered() -> None:
    """So that whoever waits sees for what. After the time for all of them none is asked."""

    async def passes(peer: Peer) -> Finding:
        return Finding(Verdict.PASS, "as it should be")

    lines: list[str] = []
    with served() as target:
        questions = [Question("x", "Is it?", passes)]
        session = CheckSession(target=target, questions=questions, config=SMALL)
        assert [found.verdict for found in session.run(lines.append).findings] == [Verdict.PASS]
        late = dataclasses.replace(session, total_s=0.0)
        assert [found.verdict for found in late.run(lines.append).findings] == [Verdict.UNKNOWN]
    assert lines[0] == "1/1 x: Is it?" and lines[1].startswith("    pass, as it should be (")


def test_server_that_is_silent_from_the_first_is_not_waited_for() -> None:
    """In the time of one question it must have answered a few small requests."""
    with served(slots=0) as target:
        session = CheckSession(target=target, questions=[], config=msgspec.structs.replace(SMALL, timeout_s=0.3))
        with pytest.raises(LoadError, match=r"a few small requests took over 0.3 s \(--timeout\)"):
            session.run(print)


@contextlib.contextmanager
def served(slots: int = 8) -> Iterator[Target]:
    """The small server in a loop of its own, since a session has one too."""
    ready: queue.Queue[tuple[Target, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with model_server() as (script, _):
            script.slots = slots
            over = asyncio.Event()
            ready.put((script.target, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    target, loop, over = ready.get()
    try:
        yield target
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
