"""The verdicts of `joiner`, from invented figures."""

from __future__ import annotations

import msgspec
import pytest

from sluiceway_lab.experiments.joiner import joined_figures, verdicts
from sluiceway_lab.load.record import Run
from sluiceway_lab.load.transcript import Answer
from support.labs import lab_of
from support.records import run


def answer(started_s: float, *chunk_s: float) -> Answer:
    return Answer(
        started_s=started_s,
        chunk_s=chunk_s,
        prompt_tokens=None,
        completion_tokens=None,
        n_bytes=1,
    )


def test_itls_count_while_requests_join() -> None:
    """Every ITL counts that overlaps the time from the first request to the end of the last."""
    residents = [[0.0, 5.0, 5.9, 6.2, 6.5, 9.0, 9.1], [6.0, 6.1]]
    found = joined_figures("short", [answer(6.0, 6.1), answer(6.2, 6.4, 6.45)], residents)
    assert found["longest_itl_s"] == pytest.approx(0.3) and found["itl_p50_s"] == pytest.approx(0.3)
    assert found["first_token_p50_s"] == pytest.approx(0.1) and found["first_token_p99_s"] == pytest.approx(0.2)


def test_long_request_without_residents_has_only_a_ttft() -> None:
    assert joined_figures("long", [answer(1.0, 1.5)], []) == {"joiner_first_token_s": 0.5}


def level(streams: int, wait_s: float, longest_s: float) -> list[Run]:
    short = run("s", "short", streams, 0, first_token_p50_s=wait_s, first_token_p99_s=wait_s)
    long = run("s", "long", streams, 0, joiner_first_token_s=1.0)
    itls = {"itl_p50_s": 0.01, "longest_itl_s": longest_s} if streams else {}
    return [msgspec.structs.replace(one, figures=one.figures | itls) for one in (short, long)]


def test_cheap_joining_requests_support_all_hypotheses() -> None:
    found = verdicts(lab_of(*level(0, 0.016, 0.0), *level(8, 0.041, 0.05), *level(24, 0.047, 0.15)))
    assert [one.stood for one in found] == [True, True, True]
    assert found[0].sentence == ("first token with 0: 16 ms (p99 16), with 8: 41 ms (p99 41), with 24: 47 ms (p99 47)")
    assert found[1].sentence == "longest ITL with 8: 50 ms (median 10), longest ITL with 24: 150 ms (median 10)"


def test_newcomers_that_cost_much_fall() -> None:
    found = verdicts(lab_of(*level(0, 0.016, 0.0), *level(8, 0.041, 0.05), *level(24, 0.123, 0.16)))
    assert [one.stood for one in found] == [False, False, False]
