"""The score card."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from sluiceway_lab.check.card import answered, run_of, show, tally
from sluiceway_lab.check.question import Finding
from sluiceway_lab.check.registry import QUESTIONS
from sluiceway_lab.load.record import SCHEMA, Grade, Record
from support.check_records import check_record

FIRST, SECOND = QUESTIONS[:2]
GOOD = Finding(Grade.PASS, "all [bold]well[/bold]", {"ratio": 1.0})
BAD = Finding(Grade.FAIL, "broke", {})


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
