"""Progress is reported immediately, then at a limited rate, and only if it has changed."""

from __future__ import annotations

from collections import abc

import pytest

from sluiceway.engine.scheduler.progress_reporter import REPORT_S, ProgressReporter
from sluiceway.engine.scheduler.sequence import Input, Sequence
from sluiceway.types import Progress, Rid
from support.scheduling import request

LONG_S = 10 * REPORT_S


def reporter_of(*requests: Sequence) -> ProgressReporter:
    """Return a reporter that watches each sequence as a request of its own."""
    reporter = ProgressReporter()
    for one in requests:
        reporter.add([one])
    return reporter


def reports(reporter: ProgressReporter, queue: abc.Sequence[Rid] = (), now_s: float = 0.0) -> dict[Rid, Progress]:
    return {report.rid: report.progress for report in reporter.reports(queue, now_s)}


def running(one: Sequence, n_computed: int = 0) -> Sequence:
    one.receive(Input.SCHEDULE)
    one.n_computed = n_computed
    return one


def test_new_reporter_watches_no_sequence() -> None:
    """It reports nothing, and does not read the queue."""
    reporter = ProgressReporter()
    assert not reporter and 1 not in reporter
    assert reporter.reports(iter(lambda: pytest.fail("the queue was read"), None), 0.0) == []


def test_position_in_the_queue_is_reported_when_it_changes() -> None:
    """The position is one more than the number of sequences before it, watched or not."""
    reporter = reporter_of(request(3, n_prompt=9), request(5, n_prompt=4))
    assert reports(reporter, [1, 3, 2, 5]) == {3: Progress(2, 0, 9), 5: Progress(4, 0, 4)}
    assert reports(reporter, [1, 3, 5], LONG_S) == {5: Progress(3, 0, 4)}
    assert reports(reporter, [1, 3, 5], 2 * LONG_S) == {}


def test_computed_prompt_tokens_are_reported() -> None:
    """From none to all of them. The last report comes with the first token, and no report follows."""
    one = running(request(1, n_prompt=6))
    reporter, seen = reporter_of(one), []
    for second, n_computed in enumerate((0, 2, 4, 6)):
        one.n_computed = n_computed
        if n_computed == 6:
            one.append(9)
            reporter.started(1)
        seen.append(reports(reporter, (), float(second)))
    assert seen == [{1: Progress(0, n_computed, 6)} for n_computed in (0, 2, 4, 6)]
    assert not reporter and reports(reporter, (), LONG_S) == {}


def test_reports_are_limited_to_one_per_interval() -> None:
    """The first comes immediately, then one per `REPORT_S` with the latest state."""
    one = running(request(1, n_prompt=90))
    reporter, seen = reporter_of(one), list[tuple[float, int]]()
    for n in range(40):
        one.n_computed = n
        now_s = n * REPORT_S / 10
        seen += [(now_s, progress.computed_tokens) for progress in reports(reporter, (), now_s).values()]
    assert [n_computed for _, n_computed in seen] == [0, 10, 20, 30]
    assert seen[0][0] == 0.0


def test_new_sequence_is_reported_immediately_after_reports_of_others() -> None:
    """The interval of the others does not change."""
    reporter = reporter_of(request(1))
    assert reports(reporter, [1]) == {1: Progress(1, 0, 4)}
    reporter.add([request(2)])
    assert reports(reporter, [9, 1, 2], 0.01) == {2: Progress(3, 0, 4)}
    assert reports(reporter, [9, 1, 2], REPORT_S) == {1: Progress(2, 0, 4)}
    assert reports(reporter, [2], REPORT_S + 0.01) == {2: Progress(1, 0, 4)}


def test_report_that_is_not_due_at_the_first_token_is_dropped() -> None:
    """It is not sent later, between the tokens."""
    one = running(request(1, n_prompt=6), 4)
    reporter = reporter_of(one)
    assert reports(reporter) == {1: Progress(0, 4, 6)}
    one.n_computed = 6
    one.append(9)
    reporter.started(1)
    assert reports(reporter, (), REPORT_S / 2) == {}
    assert not reporter and reports(reporter, (), LONG_S) == {}


def test_first_token_of_an_unwatched_sequence_changes_nothing() -> None:
    reporter = reporter_of(request(1))
    reporter.started(2)
    assert reports(reporter, [1]) == {1: Progress(1, 0, 4)} and reporter


def test_progress_of_a_group_is_that_of_its_foremost_sequence() -> None:
    """By position while all wait, else by computed prompt tokens. Reports carry the rid of the first sequence."""
    group = [request(1, n_prompt=8), request(2, n_prompt=8), request(3, n_prompt=6)]
    reporter = ProgressReporter()
    reporter.add(group)
    assert [rid in reporter for rid in (1, 2, 3, 4)] == [True, True, True, False]
    assert reports(reporter, [7, 2, 1, 3]) == {1: Progress(2, 0, 8)}
    running(group[1], 3)
    running(group[2], 5)
    assert reports(reporter, [1], LONG_S) == {1: Progress(0, 5, 6)}
    group[2].n_computed = 6
    group[2].append(9)
    reporter.started(3)
    group[2].receive(Input.PARK)
    assert reports(reporter, [1], 2 * LONG_S) == {1: Progress(0, 6, 6)}
    assert not reporter and 3 not in reporter


def test_preempted_sequence_is_reported_in_the_queue_again() -> None:
    """The report shows that no token is computed any more."""
    one = running(request(1, n_prompt=8), 4)
    reporter = reporter_of(one)
    assert reports(reporter) == {1: Progress(0, 4, 8)}
    one.receive(Input.PREEMPT)
    one.forget_computed()
    assert reports(reporter, [1], LONG_S) == {1: Progress(1, 0, 8)}


def test_parked_sequence_is_not_reported() -> None:
    """When it is resumed, its position is reported."""
    one = request(1)
    reporter = reporter_of(one)
    one.receive(Input.PARK)
    assert reports(reporter, [2]) == {}
    one.receive(Input.RESUME)
    assert reports(reporter, [1, 2], LONG_S) == {1: Progress(1, 0, 4)}


def test_ended_group_is_not_reported() -> None:
    """One ended sequence ends the reports of its group, and of no other. Unknown ids are ignored."""
    reporter = ProgressReporter()
    reporter.add([request(1), request(2)])
    reporter.add([request(3)])
    reporter.drop(2)
    reporter.drop(2)
    reporter.drop(99)
    assert [rid in reporter for rid in (1, 2, 3)] == [False, False, True]
    assert reports(reporter, [1, 3]) == {3: Progress(2, 0, 4)}
    reporter.drop(3)
    assert not reporter
