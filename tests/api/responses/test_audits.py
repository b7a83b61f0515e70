"""An answer finds the function that waits for it."""

from __future__ import annotations

import pytest

from sluiceway.api.responses.audits import Audits
from sluiceway.errors import PeerGone
from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.ipc.messages.to_tokenizer import AuditQuery, FromApi
from support.snapshots import engine_stats


def report(query_id: int) -> AuditReport:
    return AuditReport(
        query_id=query_id, engine=engine_stats(), live=(), violations=(), tokenizer_encoding=0, tokenizer_decoding=0
    )


def test_each_function_gets_the_answer_to_its_question() -> None:
    """Answers may come in any order. Each is passed on once."""
    pushed: list[FromApi] = []
    audits = Audits(pushed.append)
    got: list[tuple[str, AuditReport]] = []
    first = audits.ask(lambda report: got.append(("first", report)))
    second = audits.ask(lambda report: got.append(("second", report)))
    assert pushed == [AuditQuery(first), AuditQuery(second)]
    for query_id in (second, first, second):
        audits.answered(report(query_id))
    assert got == [("second", report(second)), ("first", report(first))]


def test_an_answer_to_a_forgotten_question_is_ignored() -> None:
    """A question may be forgotten twice."""
    audits = Audits(lambda _: None)
    got: list[AuditReport] = []
    query_id = audits.ask(got.append)
    audits.forget(query_id)
    audits.forget(query_id)
    audits.answered(report(query_id))
    assert got == []


def test_nothing_is_kept_when_the_question_cannot_be_sent() -> None:

    def gone(_: FromApi) -> None:
        raise PeerGone("nobody")

    audits, got = Audits(gone), list[AuditReport]()
    with pytest.raises(PeerGone):
        audits.ask(got.append)
    audits.answered(report(1))
    assert got == []
