"""The invariants hold for any commands, at any time, in any order.

Hypothesis submits, aborts, pauses, resumes and parks any id, and plans and commits with up to two steps in
flight, over a pool that is too small. The fake runner refuses plans that use stale or shared blocks, and after every
rule the scheduler checks itself. The machine keeps a record of the messages and checks it: one end for each
start, no token after it, and the same tokens that the sequence would get alone. Some sequences use drafts, and the text
repeats itself, so drafts are accepted and rejected; the tokens do not change. Every other group is watched.

Five mutants each break one rule. The same machine must find each of them.
"""

from __future__ import annotations

from array import array
from collections import abc
from collections.abc import Callable, Collection

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sluiceway.engine.runner import Step
from sluiceway.engine.scheduler.blocks import BlockPool
from sluiceway.engine.scheduler.leases import Leases
from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.engine.scheduler.sequence import Sequence, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.errors import InvariantError, Refusal
from sluiceway.types import BlockId, FinishReason, Flow, Logprobs, Rid, Speculation, StepId, TokenId
from support.scheduling import EOS, SchedulerLoop, engine_config, sampling, submission

CONFIG = engine_config(n_blocks=8, max_model_len=32, max_running=3, max_waiting=4, max_step_tokens=8)
EOS_EVERY = 16
PERIOD = 4
FAULT = Refusal(status=500, code="engine_fault", message="It broke.")
NUMBERS = st.integers(0, 1000)


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler with commands and steps, and records its messages."""

    def __init__(self, make_scheduler: Callable[[], Scheduler] = lambda: Scheduler(CONFIG)) -> None:
        super().__init__()
        self.scheduler = make_scheduler()
        self.runner = SchedulerLoop(CONFIG, eos_every=EOS_EVERY, period=PERIOD).runner
        self.in_flight: list[tuple[Plan, Step]] = []
        self.n_submitted = 0
        self.lengths: dict[Rid, tuple[int, int]] = {}
        self.answers: dict[Rid, list[TokenId]] = {}
        self.reasons: dict[Rid, FinishReason] = {}
        self.n_rejected = 0
        self.n_sampled = 0
        self.now_s = 0.0
        self.is_sound = True

    @rule(
        n=st.integers(1, 2),
        n_prompt=st.integers(1, 12),
        max_tokens=st.integers(1, 25),
        speculation=st.sampled_from(["off", "ngram"]),
    )
    def submit(self, n: int, n_prompt: int, max_tokens: int, speculation: Speculation) -> None:
        rids = range(self.n_submitted, self.n_submitted + n)
        self.n_submitted += n
        self.lengths.update((rid, (n_prompt, max_tokens)) for rid in rids)
        params = sampling(max_tokens=max_tokens, speculation=speculation)
        group = [submission(rid, n_prompt, params) for rid in rids]
        self.scheduler.submit(group, is_watched=self.n_submitted % 2 == 0)

    @rule(number=NUMBERS)
    def abort(self, number: int) -> None:
        rid = self._any_rid(number)
        is_live = rid in self.answers and rid not in self.reasons
        assert self.scheduler.finish(rid, FinishReason.CANCELLED) == is_live, "the first end wins, and no other"

    @rule(number=NUMBERS)
    def pause(self, number: int) -> None:
        self.scheduler.set_flow(self._any_rid(number), Flow.PAUSE)

    @rule(number=NUMBERS)
    def resume(self, number: int) -> None:
        self.scheduler.set_flow(self._any_rid(number), Flow.RUN)

    @rule(number=NUMBERS, is_resumed=st.booleans())
    def park(self, number: int, is_resumed: bool) -> None:
        self.scheduler.set_flow(self._any_rid(number), Flow.PARK)
        if is_resumed:
            self.scheduler.set_flow(self._any_rid(number), Flow.RUN)

    @precondition(lambda self: len(self.in_flight) < 2)
    @rule()
    def launch(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            assert plan.n_tokens <= CONFIG.max_step_tokens
            self.is_sound = False
            self.in_flight.append((plan, self.runner.launch(plan)))
            self.is_sound = True

    @rule(n_steps=st.integers(2, 10))
    def work(self, n_steps: int) -> None:
        """Generate with two steps in flight, until the answers need each other's blocks."""
        for _ in range(n_steps):
            if len(self.in_flight) == 2:
                self.settle()
                self.invariants_hold()
            self.launch()

    @precondition(lambda self: self.in_flight)
    @rule()
    def settle(self) -> None:
        plan, step = self.in_flight.pop(0)
        self.is_sound = False
        result = step.wait()
        self.n_sampled += len(result.token_ids)
        self.scheduler.commit(plan, result)
        self.is_sound = True

    @precondition(lambda self: self.in_flight)
    @rule(is_failing=st.integers(0, 9).map(lambda number: number == 9))
    def fail(self, is_failing: bool) -> None:
        """Sometimes the runner fails after it has written its blocks."""
        if is_failing:
            plan, step = self.in_flight.pop(0)
            step.wait()
            self.scheduler.abandon(plan, FAULT)

    @invariant()
    def invariants_hold(self) -> None:
        self.is_sound = False
        self.scheduler.check()
        self._record()
        self.is_sound = True

    def teardown(self) -> None:
        """Resume every sequence, and run until all have finished. After a failure, do nothing."""
        if not self.is_sound:
            return
        for rid in range(self.n_submitted):
            self.scheduler.set_flow(rid, Flow.RUN)
        for _ in range(2_000):
            if self.in_flight:
                self.settle()
            elif self.scheduler.is_empty:
                break
            else:
                assert self.scheduler.has_work, "no sequence is left out of plans, so there must be work"
                self.launch()
            self.invariants_hold()
        assert self.scheduler.is_empty, "a sequence never finishes"
        self._check_totals()

    def _any_rid(self, number: int) -> Rid:
        """Return the id of a live or finished sequence, or an id that was never submitted."""
        return number % (self.n_submitted + 2)

    def _record(self) -> None:
        outputs = self.scheduler.drain()
        for start in outputs.starts:
            assert start.rid not in self.answers, "two starts"
            self.answers[start.rid] = []
        self.n_rejected += sum(len(rejection.rids) for rejection in outputs.rejections)
        self.now_s += 1.0
        for report in self.scheduler.progress(self.now_s):
            rid, progress = report.rid, report.progress
            assert rid not in self.reasons and len(self.answers[rid]) <= 1, "progress after the second token"
            assert 0 <= progress.computed_tokens <= progress.total_tokens == self.lengths[rid][0]
        for rid, token_id in zip(outputs.rids, outputs.token_ids, strict=True):
            assert rid in self.answers and rid not in self.reasons, "a token before the start or after the terminal"
            self.answers[rid].append(token_id)
        for end in outputs.ends:
            assert end.rid in self.answers and end.rid not in self.reasons, "two terminals, or one without a start"
            self.reasons[end.rid] = end.reason

    def _check_totals(self) -> None:
        stats = self.scheduler.stats()
        assert self.reasons.keys() == self.answers.keys(), "one terminal for each start"
        assert len(self.answers) + self.n_rejected == self.n_submitted, "each submission is accepted or rejected"
        assert stats.blocks_free == stats.blocks_total, "blocks have leaked"
        assert stats.accepted_total == stats.finished_total == stats.released_total == len(self.answers)
        assert stats.generated_tokens_total == sum(len(answer) for answer in self.answers.values())
        n_rejected_drafts = stats.draft_tokens_total - stats.accepted_draft_tokens_total
        n_accounted = stats.generated_tokens_total + stats.wasted_tokens_total + n_rejected_drafts
        assert n_accounted == self.n_sampled, "each sampled token is generated, wasted or a rejected draft"
        for rid, answer in self.answers.items():
            alone = answer_alone(rid, *self.lengths[rid])
            is_whole = self.reasons[rid] in (FinishReason.STOP, FinishReason.LENGTH)
            assert answer == (alone if is_whole else alone[: len(answer)]), (
                "the answer differs when the sequence runs alone"
            )


def answer_alone(rid: Rid, n_prompt: int, max_tokens: int) -> list[TokenId]:
    loop = SchedulerLoop(CONFIG, eos_every=EOS_EVERY, period=PERIOD)
    loop.submit(submission(rid, n_prompt, sampling(max_tokens=max_tokens)))
    loop.run()
    return loop.tokens[rid]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(derandomize=True, max_examples=80, stateful_step_count=50, deadline=None)


class UnfencedLeases(Leases):
    """Ignores the fence: blocks are free although a step in flight may write them."""

    def vacate(self, rid: Rid, fence: StepId) -> None:
        super().vacate(rid, self.settled)

    def retire(self, rid: Rid, fence: StepId) -> None:
        super().retire(rid, self.settled)


class UnguardedPool(BlockPool):
    """Takes back any block, even a free one."""

    def give(self, block_ids: Collection[BlockId]) -> None:
        self._free.extend(block_ids)


class UnguardedLeases(Leases):
    """Does not record that blocks were released, so that they are released again."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = UnguardedPool(pool.n_blocks)
        super().__init__(self.pool)

    def vacate(self, rid: Rid, fence: StepId) -> None:
        held = array("i", self.blocks_of(rid))
        super().vacate(rid, fence)
        self._held[rid] = held


class TrustingScheduler(Scheduler):
    """Takes the result of a sequence that has finished."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.known: dict[Rid, Sequence] = {}

    def plan(self) -> Plan | None:
        plan = super().plan()
        self.known.update(self._table.live)
        return plan

    def _receiver(self, step_id: StepId, row: Row) -> Sequence | None:
        request = self.known[row.rid]
        return request if request.state is State.FINISHED else super()._receiver(step_id, row)


class ForgetfulScheduler(Scheduler):
    """Takes the result of any step, also for a sequence that has lost its blocks since."""

    def _receiver(self, step_id: StepId, row: Row) -> Sequence | None:
        return self._table.live.get(row.rid)


class WrongDraftScheduler(Scheduler):
    """Counts the positions of wrong drafts as computed."""

    def _commit_row(
        self, step_id: StepId, row: Row, sampled: abc.Sequence[TokenId], logprobs: abc.Sequence[Logprobs | None]
    ) -> None:
        request = self._receiver(step_id, row)
        super()._commit_row(step_id, row, sampled, logprobs)
        if request is not None and request.n_computed:
            request.n_computed = row.start + row.n_tokens


def with_leases(leases: type[Leases]) -> Scheduler:
    table = SequenceTable(CONFIG)
    table.leases = leases(table.pool)
    if isinstance(table.leases, UnguardedLeases):
        table.pool = table.leases.pool
    return Scheduler(CONFIG, table)


MUTANTS: dict[str, Callable[[], Scheduler]] = {
    "no fence": lambda: with_leases(UnfencedLeases),
    "no guard": lambda: with_leases(UnguardedLeases),
    "no status check": TrustingScheduler,
    "no step check": lambda: ForgetfulScheduler(CONFIG),
    "no wrong drafts": lambda: WrongDraftScheduler(CONFIG),
}


@pytest.mark.parametrize(
    ("mutant", "sentence"),
    [
        ("no fence", "I3: block . is free and step"),
        ("no guard", "I2: free, leased and fenced blocks do not partition the pool"),
        ("no status check", "a token before the start or after the terminal"),
        ("no step check", "does not hold its tokens|tokens from .* of|never finishes"),
        ("no wrong drafts", "does not hold its tokens|tokens from .* of|never finishes"),
    ],
)
def test_machine_finds_every_mutant(mutant: str, sentence: str) -> None:
    """A machine that misses a mutant would prove nothing."""

    class MutantMachine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(MUTANTS[mutant])

    quick = settings(
        TestScheduler.settings, phases=[Phase.generate], max_examples=300, report_multiple_bugs=False, database=None
    )
    with pytest.raises((InvariantError, AssertionError), match=sentence):
        run_state_machine_as_test(MutantMachine, settings=quick)


def test_model_of_the_machine_gives_the_end_token() -> None:
    """So stops and aborts of the same sequence can meet."""
    assert answer_alone(0, 4, 25)[-1] == EOS
