"""Checks of a scripted server, and their cards."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import queue
import threading
from collections.abc import Iterator

import msgspec
import pytest
from rich.console import Console

from sluiceway.errors import ConfigError
from sluiceway_lab.check.question import CheckConfig, CheckContext, Finding, Question
from sluiceway_lab.check.session import QUESTIONS, CheckSession, answered, chosen, finding, run_of, show, tally
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.record import SCHEMA, Grade, Record
from support.check_records import check_record
from support.mirror import ROOT
from support.model_server import SMALL, context_of, model_server
from support.server import Server

OWN = CheckConfig(streams=4, tokens=24, long_tokens=600, burst=100, timeout_s=60.0)
NEVER_FAILS = {question.name for question in QUESTIONS} - {"slow-reader"}
"""A whole check of our own server, and of servers that break during it."""
UNKNOWN = {"silence", "characters"}
"""A whole check of our own server, and of servers that break during it."""
FIRST, SECOND = QUESTIONS[:2]
GOOD = Finding(Grade.PASS, "all [bold]well[/bold]", {"ratio": 1.0})
BAD = Finding(Grade.FAIL, "broke", {})


@pytest.mark.e2e
def test_our_own_server_fails_nothing() -> None:
    """Only questions that do not depend on the speed of the machine are compared."""
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
    grades = {found.question: found.grade for found in record.findings}
    assert list(grades) == [question.name for question in QUESTIONS] and len(lines) == 2 * len(QUESTIONS)
    assert {name for name in NEVER_FAILS if grades[name] is Grade.FAIL} == set(), record.findings
    certain = {"isolation", "terminal", "stop-strings", "connections", "bad-requests", "overload", "drain"}
    assert {grades[name] for name in certain} == {Grade.PASS}, record.findings
    assert {grades[name] for name in UNKNOWN} == {Grade.UNKNOWN}
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record
    assert (record.schema, record.servers[0].kind, record.config["burst"]) == (SCHEMA, "sluiceway", 100)


async def test_question_that_breaks_off_has_failed() -> None:

    async def breaks(context: CheckContext) -> Finding:
        raise LoadError("the server broke off its answer")

    async with model_server() as (script, _):
        found = await finding(Question("x", "?", breaks), await context_of(script), 60.0)
    assert found == Finding(Grade.FAIL, "the server broke off its answer")


@pytest.mark.parametrize(
    ("left_s", "sentence"),
    [
        (60.0, "it had not ended after 0.05 s: the server is too slow (--timeout)"),
        (0.02, "it had not ended when the time for all questions was over (--total)"),
        (0.0, "not asked: the time for all questions is over (--total)"),
    ],
)
async def test_question_that_takes_too_long_has_no_answer(left_s: float, sentence: str) -> None:
    """Each request has its own limit, so the server did answer."""

    async def hangs(context: CheckContext) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError("it is not set")

    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.05)
        context = dataclasses.replace(await context_of(script), config=hurried)
        found = await finding(Question("x", "?", hangs), context, left_s)
    assert (found.grade, found.sentence) == (Grade.UNKNOWN, sentence)


def test_questions_are_announced_and_answered() -> None:

    async def passes(context: CheckContext) -> Finding:
        return Finding(Grade.PASS, "as it should be")

    lines: list[str] = []
    with served() as target:
        questions = [Question("x", "Is it?", passes)]
        session = CheckSession(target=target, questions=questions, config=SMALL)
        assert [found.grade for found in session.run(lines.append).findings] == [Grade.PASS]
        late = dataclasses.replace(session, total_s=0.0)
        assert [found.grade for found in late.run(lines.append).findings] == [Grade.UNKNOWN]
    assert lines[0] == "1/1 x: Is it?" and lines[1].startswith("    pass, as it should be (")


def test_server_that_is_silent_from_the_first_is_not_waited_for() -> None:
    """It has to answer a few small requests within the limit of a question."""
    with served(slots=0) as target:
        session = CheckSession(target=target, questions=[], config=msgspec.structs.replace(SMALL, timeout_s=0.3))
        with pytest.raises(LoadError, match=r"a few small requests took over 0.3 s \(--timeout\)"):
            session.run(print)


@contextlib.contextmanager
def served(slots: int = 8) -> Iterator[Target]:
    """The small server in a thread with its own loop, because a session also has one."""
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


def test_card_has_a_line_for_each_question() -> None:
    out = io.StringIO()
    show(check_record([(FIRST, GOOD), (SECOND, BAD)]), Console(file=out, width=120))
    assert "all [bold]well[/bold]" in out.getvalue() and "isolation" in out.getvalue()
    assert out.getvalue().splitlines()[-1].strip() == "1 pass, 1 fail"


def test_record_is_one_of_the_lab() -> None:
    made = check_record([(FIRST, GOOD), (SECOND, BAD)])
    read = msgspec.json.decode(msgspec.json.encode(made), type=Record)
    assert (read.schema, read.experiment) == (SCHEMA, "check")
    assert [(run.scenario, run.figures, run.errors) for run in read.runs] == [
        ("overlap", {"ratio": 1.0}, []),
        ("isolation", {}, ["broke"]),
    ]


def test_record_knows_whether_a_question_failed() -> None:
    warned = Finding(Grade.WARN, "odd", {})
    assert not check_record([(FIRST, GOOD), (SECOND, warned)]).has_failed
    assert check_record([(FIRST, GOOD), (SECOND, BAD)]).has_failed


def test_finding_is_recorded_with_its_question() -> None:
    found = answered(FIRST, GOOD)
    assert (found.question, found.grade, found.sentence) == ("overlap", Grade.PASS, GOOD.sentence)
    assert tally([answered(SECOND, BAD), found, found]) == "2 pass, 1 fail"
    assert run_of("s", FIRST, GOOD).server == "s"


def test_names_are_unique_and_the_last_one_ends_the_server() -> None:
    names = [question.name for question in QUESTIONS]
    assert len(set(names)) == len(names) and names[-1] == "drain"


def test_questions_are_chosen_by_name() -> None:
    assert [question.name for question in chosen(["fin", "overlap"])] == ["overlap", "fin"]
    assert chosen([]) == list(QUESTIONS)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="only: must be one of bad-requests, .*, not 'naps'"):
        chosen(["naps"])


def test_every_question_is_on_its_page() -> None:
    page = (ROOT / "docs" / "check.md").read_text()
    assert [question.name for question in QUESTIONS if f"`{question.name}`" not in page] == []
