"""A reader that stops, while others read on."""

from __future__ import annotations

import dataclasses

import pytest

from sluiceway_lab.check.slow_reader import CUT, QUESTION, SILENT, TOLD, WHOLE, Stopped, judge
from sluiceway_lab.load.record import Grade
from support.model_server import ask

FINE = Stopped(end=WHOLE, unread_bytes=29_000, growth_bytes=None)


async def test_others_who_notice_nothing_pass() -> None:
    found = await ask(QUESTION)
    assert found.grade is not Grade.FAIL and found.sentence.endswith(f"kB unread it read on and {WHOLE}")


async def test_others_who_wait_for_the_slowest_fail() -> None:
    found = await ask(QUESTION, "blocks")
    assert found.grade is Grade.FAIL and "the others failed: they had not ended" in found.sentence


@pytest.mark.parametrize(
    ("ratio", "stopped", "grade"),
    [
        (1.0, FINE, Grade.PASS),
        (2.0, FINE, Grade.WARN),
        (5.0, FINE, Grade.FAIL),
        (1.0, dataclasses.replace(FINE, end=TOLD), Grade.PASS),
        (1.0, dataclasses.replace(FINE, end=CUT), Grade.WARN),
        (1.0, dataclasses.replace(FINE, end=SILENT), Grade.FAIL),
        (1.0, dataclasses.replace(FINE, growth_bytes=1000), Grade.PASS),
        (1.0, dataclasses.replace(FINE, growth_bytes=100_000_000), Grade.WARN),
    ],
)
def test_grade(ratio: float, stopped: Stopped, grade: Grade) -> None:
    assert judge(7, ratio, stopped).grade is grade


def test_memory_is_reported_if_it_is_known() -> None:
    found = judge(7, 1.03, dataclasses.replace(FINE, growth_bytes=400_000))
    assert found.sentence == (
        "7 healthy streams next to a stopped reader took 1.03 x; "
        f"with 29 kB unread it read on and {WHOLE}; the server's memory grew by 0.4 MB"
    )
    assert found.figures == {"healthy_ratio": 1.03, "unread_bytes": 29_000.0, "rss_growth_bytes": 400_000.0}
