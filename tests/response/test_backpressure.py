"""How the readers of a response stand decides how its sequences run, and the engine is told changes only."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.response.backlog import START, Backlog
from sluiceway.response.backpressure import Backpressure
from sluiceway.response.budget import Budget
from sluiceway.response.lifecycle import Effect, EndReader
from sluiceway.response.policy import POLICIES, Decision, Policy, PolicyName
from sluiceway.response.readers import Readers
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.types import FinishReason, Flow

RUN, PAUSE, PARK, DROP = Decision.RUN, Decision.PAUSE, Decision.PARK, Decision.DROP
RIDS = (1, 2)
PAUSES, PARKS, RESUMES = SetFlow(RIDS, Flow.PAUSE), SetFlow(RIDS, Flow.PARK), SetFlow(RIDS, Flow.RUN)
BY_DEGREES = msgspec.structs.replace(
    POLICIES[PolicyName.PAUSE_PARK_DROP],
    low_events=0,
    high_events=2,
    limit_events=8,
    park_after_s=2.0,
    drop_after_s=5.0,
)
KEPT = Retention(grace_s=30.0, ahead_tokens=3)


class Sluice:
    """A response whose events have one byte and one token, and its readers."""

    def __init__(self, policy: Policy = BY_DEGREES, retention: Retention | None = KEPT, n_readers: int = 1) -> None:
        self.budget = Budget(max_bytes=100, max_events=100)
        terms = StreamTerms(policy=policy, retention=retention)
        self.replay = Backlog(self.budget, KEPT.window)
        self.readers = Readers(policy)
        self.backpressure = Backpressure(terms, self.readers, self.replay, self.budget)
        self.ids = [self.readers.admit(START, START, 0.0) for _ in range(n_readers)]

    def say(self, n_events: int) -> None:
        for _ in range(n_events):
            self.replay.push(b"x", 1)

    def write(self, reader_id: int, now_s: float) -> None:
        reader = self.readers.by_id[reader_id]
        assert reader.take(self.replay)
        reader.wrote(self.replay.end, now_s, 0)

    def attended(self, now_s: float, *, may_return: bool = False) -> tuple[Decision, tuple[Effect, ...]]:
        return self.backpressure.attended(RIDS, now_s, may_return=may_return)

    def is_calm(self) -> bool:
        return not self.budget.pressure and self.readers.is_calm(self.replay.end)


def test_a_reader_that_is_behind_costs_its_response_by_degrees() -> None:
    """Paused, parked, and resumed when it has caught up; each is told once."""
    sluice = Sluice()
    assert sluice.attended(0.0) == (RUN, ())
    sluice.say(3)
    assert sluice.attended(1.0) == (PAUSE, (PAUSES,)) and sluice.backpressure.is_held
    assert sluice.attended(2.0) == (PAUSE, ())
    assert sluice.attended(3.0) == (PARK, (PARKS,))
    assert sluice.attended(4.0) == (PARK, ())
    sluice.write(sluice.ids[0], 4.5)
    assert sluice.attended(4.5) == (RUN, (RESUMES,)) and not sluice.backpressure.is_held


def test_one_that_is_too_slow_among_others_gets_its_last_word_alone() -> None:
    """The response flows on for those that keep up."""
    sluice = Sluice(n_readers=2)
    slow, fast = sluice.ids
    sluice.say(9)
    sluice.write(fast, 1.0)
    assert sluice.attended(1.0) == (RUN, (EndReader(slow, FinishReason.SLOW_CLIENT),))
    assert sluice.readers.by_id[slow].is_dismissed
    assert sluice.attended(1.0) == (RUN, ()), "nobody gets two last words"


@pytest.mark.parametrize("may_return", [True, False])
def test_all_get_their_last_word_alone_only_when_the_response_goes_on(may_return: bool) -> None:
    """Else its end is the last word; either way, nobody has to take first what waited."""
    sluice = Sluice(n_readers=2)
    sluice.say(9)
    last_words = tuple(EndReader(reader_id, FinishReason.SLOW_CLIENT) for reader_id in sluice.ids)
    assert sluice.attended(1.0, may_return=may_return) == (DROP, last_words if may_return else ())
    assert [reader.cursor for reader in sluice.readers.by_id.values()] == [sluice.replay.end] * 2
    assert sluice.readers.has_listener is not may_return
    assert not sluice.backpressure.is_held


def test_it_is_calm_when_nobody_can_have_fallen_behind() -> None:
    """Within what the readers may still be sent, and while memory is not short."""
    sluice = Sluice()
    sluice.attended(0.0)
    sluice.say(2)
    assert sluice.is_calm()
    sluice.budget.hold(90)
    assert not sluice.is_calm()
    sluice.budget.release(90, 1)
    sluice.say(1)
    assert not sluice.is_calm()


def test_what_nobody_reads_is_paused_when_it_is_ahead() -> None:
    """And parked when it was held for long; what waits does not get less, so it is not resumed."""
    sluice = Sluice(n_readers=0)
    sluice.say(2)
    assert sluice.backpressure.detached(RIDS, 0.0) == ()
    sluice.say(1)
    assert sluice.backpressure.detached(RIDS, 1.0) == (PAUSES,)
    assert sluice.backpressure.detached(RIDS, 2.9) == ()
    assert sluice.backpressure.detached(RIDS, 3.0) == (PARKS,)
    assert sluice.backpressure.detached(RIDS, 9.0) == ()


def test_what_nobody_reads_stays_paused_when_its_policy_does_not_park() -> None:
    """However long."""
    sluice = Sluice(POLICIES[PolicyName.PAUSE], n_readers=0)
    sluice.say(3)
    assert sluice.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert sluice.backpressure.detached(RIDS, 1e6) == ()


def test_nothing_runs_ahead_when_memory_is_short_or_nothing_is_kept() -> None:
    """Nor when the window is full."""
    short = Sluice(n_readers=0)
    short.budget.hold(90)
    assert short.backpressure.detached(RIDS, 0.0) == (PAUSES,)
    assert Sluice(retention=None, n_readers=0).backpressure.detached(RIDS, 0.0) == (PAUSES,)
    full = Sluice(n_readers=0)
    full.replay.push(b"x" * KEPT.max_bytes, 0)
    full.budget.release(KEPT.max_bytes, 1)
    assert full.backpressure.detached(RIDS, 0.0) == (PAUSES,)


def test_what_was_parked_is_not_paused_when_another_reader_falls_behind() -> None:
    """A pause would change nothing."""
    sluice = Sluice()
    sluice.say(3)
    sluice.attended(1.0)
    assert sluice.attended(3.0) == (PARK, (PARKS,))
    sluice.readers.by_id.clear()
    sluice.readers.admit(sluice.replay.end, sluice.replay.end, 3.5)
    sluice.say(3)
    assert sluice.attended(3.5) == (PAUSE, ())


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["say", "write", "leave", "come"]), st.floats(0.0, 3.0)), max_size=24))
def test_resumptions_alternate_with_what_they_undo(course: list[tuple[str, float]]) -> None:
    """No resumption of what flows, no second pause of what is held."""
    sluice, now_s, runs = Sluice(), 0.0, True
    for what, after_s in course:
        now_s += after_s
        reader = next(iter(sluice.readers.by_id.values()), None)
        if what == "say":
            sluice.say(2)
        elif what == "write" and reader is not None and reader.take(sluice.replay):
            reader.wrote(sluice.replay.end, now_s, 0)
        elif what == "leave":
            sluice.readers.by_id.clear()
        elif what == "come" and reader is None:
            sluice.readers.admit(sluice.replay.end, sluice.replay.end, now_s)
        is_read = bool(sluice.readers.by_id)
        effects = sluice.attended(now_s)[1] if is_read else sluice.backpressure.detached(RIDS, now_s)
        for effect in effects:
            assert isinstance(effect, SetFlow)
            assert (effect.flow is Flow.RUN) is not runs or effect.flow is Flow.PARK
            runs = effect.flow is Flow.RUN
    assert runs is not sluice.backpressure.is_held
