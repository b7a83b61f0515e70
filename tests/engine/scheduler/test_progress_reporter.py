"""How far a request is, told at once, then rarely, and only where it is news."""

from __future__ import annotations

from collections import abc

import pytest

from sluiceway.engine.scheduler.progress_reporter import REPORT_S, ProgressReporter
from sluiceway.engine.scheduler.sequence import Input, Sequence
from sluiceway.types import Progress, Rid
from support.scheduling import request

LONG_S = 10 * REPORT_S


def watching(*requests: Sequence) -> ProgressReporter:
    """Each is a request of its own."""
    watch = ProgressReporter()
    for one in requests:
        watch.add([one])
    return watch


def news(watch: ProgressReporter, queue: abc.Sequence[Rid] = (), now_s: float = 0.0) -> dict[Rid, Progress]:
    return {report.rid: report.progress for report in watch.reports(queue, now_s)}


def seat(one: Sequence, n_computed: int = 0) -> Sequence:
    one.receive(Input.SCHEDULE)
    one.n_computed = n_computed
    return one


def test_nobody_is_watched_at_first() -> None:
    """And nothing is told, nor is the queue read."""
    watch = ProgressReporter()
    assert not watch and 1 not in watch
    assert watch.reports(iter(lambda: pytest.fail("read in vain"), None), 0.0) == []


def test_place_in_the_queue_is_told_when_it_changes() -> None:
    """Those before it, watched or not, and one."""
    watch = watching(request(3, n_prompt=9), request(5, n_prompt=4))
    assert news(watch, [1, 3, 2, 5]) == {3: Progress(2, 0, 9), 5: Progress(4, 0, 4)}
    assert news(watch, [1, 3, 5], LONG_S) == {5: Progress(3, 0, 4)}
    assert news(watch, [1, 3, 5], 2 * LONG_S) == {}


def test_prompt_is_counted_when_it_is_computed() -> None:
    """From nothing to all of it: that is told with the first token, and nothing after it."""
    one = seat(request(1, n_prompt=6))
    watch, told = watching(one), []
    for second, n_computed in enumerate((0, 2, 4, 6)):
        one.n_computed = n_computed
        if n_computed == 6:
            one.append(9)
            watch.started(1)
        told.append(news(watch, (), float(second)))
    assert told == [{1: Progress(0, n_computed, 6)} for n_computed in (0, 2, 4, 6)]
    assert not watch and news(watch, (), LONG_S) == {}


def test_little_is_told_when_much_changes() -> None:
    """At once when it is new, then once in `REPORT_S`: what was passed over meanwhile is history."""
    one = seat(request(1, n_prompt=90))
    watch, told = watching(one), list[tuple[float, int]]()
    for n in range(40):
        one.n_computed = n
        now_s = n * REPORT_S / 10
        told += [(now_s, progress.computed_tokens) for progress in news(watch, (), now_s).values()]
    assert [n_computed for _, n_computed in told] == [0, 10, 20, 30]
    assert told[0][0] == 0.0


def test_a_newcomer_is_told_of_at_once_when_others_were_told_just_now() -> None:
    """The others keep to their time."""
    watch = watching(request(1))
    assert news(watch, [1]) == {1: Progress(1, 0, 4)}
    watch.add([request(2)])
    assert news(watch, [9, 1, 2], 0.01) == {2: Progress(3, 0, 4)}
    assert news(watch, [9, 1, 2], REPORT_S) == {1: Progress(2, 0, 4)}
    assert news(watch, [2], REPORT_S + 0.01) == {2: Progress(1, 0, 4)}


def test_nothing_is_told_after_the_first_token_when_it_was_told_shortly_before() -> None:
    """What is not due when the token comes is passed over, and not told among the tokens when it would be due."""
    one = seat(request(1, n_prompt=6), 4)
    watch = watching(one)
    assert news(watch) == {1: Progress(0, 4, 6)}
    one.n_computed = 6
    one.append(9)
    watch.started(1)
    assert news(watch, (), REPORT_S / 2) == {}
    assert not watch and news(watch, (), LONG_S) == {}


def test_first_token_of_one_that_is_not_watched_is_nothing() -> None:
    """Others are watched as before."""
    watch = watching(request(1))
    watch.started(2)
    assert news(watch, [1]) == {1: Progress(1, 0, 4)} and watch


def test_of_several_sequences_the_foremost_counts() -> None:
    """By place while all wait, else by what is computed of its prompt; told by the id of the first."""
    group = [request(1, n_prompt=8), request(2, n_prompt=8), request(3, n_prompt=6)]
    watch = ProgressReporter()
    watch.add(group)
    assert [rid in watch for rid in (1, 2, 3, 4)] == [True, True, True, False]
    assert news(watch, [7, 2, 1, 3]) == {1: Progress(2, 0, 8)}
    seat(group[1], 3)
    seat(group[2], 5)
    assert news(watch, [1], LONG_S) == {1: Progress(0, 5, 6)}
    group[2].n_computed = 6
    group[2].append(9)
    watch.started(3)
    group[2].receive(Input.PARK)
    assert news(watch, [1], 2 * LONG_S) == {1: Progress(0, 6, 6)}
    assert not watch and 3 not in watch


def test_it_is_back_in_the_queue_when_its_blocks_were_taken() -> None:
    """What was computed is lost, and is told so."""
    one = seat(request(1, n_prompt=8), 4)
    watch = watching(one)
    assert news(watch) == {1: Progress(0, 4, 8)}
    one.receive(Input.PREEMPT)
    one.forget_computed()
    assert news(watch, [1], LONG_S) == {1: Progress(1, 0, 8)}


def test_nothing_is_told_while_it_stands_nowhere() -> None:
    """It was parked for want of a reader; when it is back, its place is told."""
    one = request(1)
    watch = watching(one)
    one.receive(Input.PARK)
    assert news(watch, [2]) == {}
    one.receive(Input.RESUME)
    assert news(watch, [1, 2], LONG_S) == {1: Progress(1, 0, 4)}


def test_nothing_is_told_of_what_has_ended() -> None:
    """With one of its sequences it ends for all of them. Others are not touched, and any id may be dropped."""
    watch = ProgressReporter()
    watch.add([request(1), request(2)])
    watch.add([request(3)])
    watch.drop(2)
    watch.drop(2)
    watch.drop(99)
    assert [rid in watch for rid in (1, 2, 3)] == [False, False, True]
    assert news(watch, [1, 3]) == {3: Progress(2, 0, 4)}
    watch.drop(3)
    assert not watch
