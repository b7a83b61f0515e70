"""A reader that stops, among others that go on."""

from __future__ import annotations

import dataclasses

import pytest

from sluiceway_lab.check.question import Verdict
from sluiceway_lab.check.slow_reader import CUT, QUESTION, SILENT, TOLD, WHOLE, Stopped, judge
from support.model_server import ask

FINE = Stopped(end=WHOLE, unread_bytes=29_000, growth_bytes=None)


async def test_others_who_notice_nothing_pass() -> None:
    """And the one that stopped gets the rest when it reads on. How long they take depends on the machine."""
    found = await ask(QUESTION)
    assert found.verdict is not Verdict.FAIL and found.sentence.endswith(f"kB unread it read on and {WHOLE}")


async def test_others_who_wait_for_the_slowest_fail() -> None:
    """They hang, which is not waited for."""
    found = await ask(QUESTION, "blocks")
    assert found.verdict is Verdict.FAIL and "the others failed: they had not ended" in found.sentence


@pytest.mark.parametrize(
    ("ratio", "stopped", "verdict"),
    [
        (1.0, FINE, Verdict.PASS),
        (2.0, FINE, Verdict.WARN),
        (5.0, FINE, Verdict.FAIL),
        (1.0, dataclasses.replace(FINE, end=TOLD), Verdict.PASS),
        (1.0, dataclasses.replace(FINE, end=CUT), Verdict.WARN),
        (1.0, dataclasses.replace(FINE, end=SILENT), Verdict.FAIL),
        (1.0, dataclasses.replace(FINE, growth_bytes=1000), Verdict.PASS),
        (1.0, dataclasses.replace(FINE, growth_bytes=100_000_000), Verdict.WARN),
    ],
)
def test_verdict(ratio: float, stopped: Stopped, verdict: Verdict) -> None:
    """By what the others notice, what it is told, and what the server holds."""
    assert judge(7, ratio, stopped).verdict is verdict


def test_memory_is_told_where_it_can_be_seen() -> None:
    """In the sentence and in the figures."""
    found = judge(7, 1.03, dataclasses.replace(FINE, growth_bytes=400_000))
    assert found.sentence == (
        "7 healthy streams beside a stopped reader took 1.03 x; "
        f"with 29 kB unread it read on and {WHOLE}; the server's memory grew by 0.4 MB"
    )
    assert found.figures == {"healthy_ratio": 1.03, "unread_bytes": 29_000.0, "rss_growth_bytes": 400_000.0}
