"""One round for everything that runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from sluiceway.engine.engine import ENGINE_FAULT, Engine
from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.runner import Runner, Step
from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, StepResult
from sluiceway.engine.scheduler.planner import BatchPlanner
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.errors import InvariantError, ModelFault
from sluiceway.ipc.messages.to_api import Accepted, Progressed
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_engine import NewSequence as SequenceMessage
from sluiceway.ipc.messages.to_tokenizer import EngineAudit, FromEngine, SequenceEnd, StepOut
from sluiceway.types import FinishReason, Flow, Held, Progress, Rid, SamplingParams
from support.scheduling import EOS, engine_config, prompt_of


class Broken(Exception):
    """What a runner may raise."""


class FlakyRunner:
    """Passes everything on, records the plans, and fails where it is told to."""

    def __init__(self) -> None:
        self.inner = FakeRunner(n_blocks=64, block_tokens=4, eos_token_id=EOS)
        self.plans: list[Plan] = []
        self.fails_to_launch = False
        self.fails_to_wait = False
        self.answers_too_little = False
        self.gives_no_token_first = False

    def launch(self, plan: Plan) -> Step:
        if self.fails_to_launch:
            raise Broken("a secret path")
        self.plans.append(plan)
        return FlakyStep(self, plan, self.inner.launch(plan))


class FlakyStep:
    def __init__(self, runner: FlakyRunner, plan: Plan, inner: Step) -> None:
        self._runner, self._plan, self._inner = runner, plan, inner

    def wait(self) -> StepResult:
        result = self._inner.wait()
        if self._runner.fails_to_wait:
            raise Broken("a secret path")
        if self._runner.gives_no_token_first:
            return StepResult(self._plan.step_id, [NO_TOKEN, *result.token_ids[1:]])
        return StepResult(self._plan.step_id, []) if self._runner.answers_too_little else result


class Bench:
    """An engine on a flaky runner, and the ends of its pipes."""

    def __init__(self, runner: Runner | None = None, **limits: Any) -> None:
        self.runner = FlakyRunner()
        self.faults: list[Exception] = []
        self.seed_fault: Exception | None = None
        seconds = itertools.count()
        self.table = SequenceTable(engine_config(**limits))
        self.engine = Engine(
            Scheduler(engine_config(**limits), self.table),
            runner or self.runner,
            draw_seed=self._draw_seed,
            now_s=lambda: float(next(seconds)),
            on_fault=self.faults.append,
        )

    def _draw_seed(self) -> int:
        if self.seed_fault is not None:
            raise self.seed_fault
        return 77

    def step(self, before: Iterable[ToEngine] = (), meanwhile: Iterable[ToEngine] = ()) -> list[FromEngine]:
        """One step; messages that arrive before it, and while it is computed."""
        batches: Iterator[Iterable[ToEngine]] = iter((before, meanwhile))
        return self.engine.step(lambda: next(batches))

    def say(self, *messages: ToEngine) -> StepOut:
        """The one word after these messages."""
        (out,) = self.step(messages)
        assert isinstance(out, StepOut)
        return out


def submit(*rids: Rid, n_prompt: int = 4, max_tokens: int = 8, seed: int | None = None) -> Submit:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=seed)
    return Submit(
        tuple(
            SequenceMessage(rid=rid, prompt_token_ids=tuple(prompt_of(rid, n_prompt)), sampling=params) for rid in rids
        )
    )


def ends_of(out: StepOut) -> Sequence[tuple[Rid, FinishReason]]:
    return [(end.rid, end.reason) for end in out.ends]


def test_nothing_is_said_when_nothing_happens() -> None:
    """And there is no reason to call again."""
    bench = Bench()
    assert bench.step() == []
    assert not bench.engine.has_work and bench.engine.live_rids() == []


def test_start_and_first_token_are_said_when_a_request_arrives() -> None:
    """In one word, with the snapshot after it."""
    bench = Bench()
    out = bench.say(submit(1, 2))
    assert out.starts == [Accepted(1, 4, 0), Accepted(2, 4, 0)]
    assert out.rids == [1, 2] and len(out.token_ids) == 2
    assert (out.stats.step_id, out.stats.running, out.stats.step_tokens, out.stats.step_s) == (1, 2, 8, 2.0)
    assert bench.engine.has_work and bench.engine.live_rids() == [1, 2]
    assert (bench.engine.stats.generated_tokens_total, bench.engine.stats.step_s) == (2, 0.0)


def test_time_is_told_by_part() -> None:
    """On a clock that goes on by a second whenever it is read: one for each part, and none while nothing runs."""
    bench = Bench()
    bench.say(submit(1, max_tokens=2))
    stats = bench.say().stats
    assert (stats.plan_s_total, stats.model_s_total, stats.commit_s_total, stats.publish_s_total) == (2, 2, 2, 1)
    bench.step()
    stats = bench.engine.stats
    assert (stats.plan_s_total, stats.model_s_total, stats.commit_s_total, stats.publish_s_total) == (3, 2, 2, 3)


def test_end_is_said_with_the_last_token() -> None:
    """Then there is silence."""
    bench = Bench()
    assert bench.say(submit(1, max_tokens=2)).ends == []
    out = bench.say()
    assert out.rids == [1] and out.ends == [SequenceEnd(1, FinishReason.LENGTH, held=Held("running", 2))]
    assert bench.step() == [] and not bench.engine.has_work


def test_logprobs_are_said_with_their_token() -> None:
    """Of those who want them; in the same word as all else."""
    bench = Bench()
    assert bench.say(submit(1)).logprobs == {}
    wanting = SamplingParams(max_tokens=8, temperature=0.0, logprobs=1)
    out = bench.say(Submit((SequenceMessage(rid=2, prompt_token_ids=(1, 2), sampling=wanting),)))
    assert (out.rids, list(out.logprobs)) == ([1, 2], [1])
    assert out.logprobs[1].top_ids == (out.token_ids[1],)


def test_rejection_is_said_when_a_request_is_refused() -> None:
    """Although no step runs."""
    out = Bench().say(submit(1, 2, n_prompt=0))
    (rejection,) = out.rejections
    assert rejection.rids == (1, 2) and rejection.refusal.status == 400
    assert (out.stats.step_id, out.stats.step_tokens, out.stats.step_s) == (0, 0, 0.0)


def test_snapshot_is_said_when_only_it_has_changed() -> None:
    """A pause has no other word; the same snapshot is not said twice."""
    bench = Bench()
    bench.say(submit(1))
    out = bench.say(SetFlow((1,), Flow.PAUSE))
    assert (out.rids, out.stats.paused, out.stats.step_s) == ([], 1, 0.0)
    assert bench.step([SetFlow((1,), Flow.PAUSE)]) == [] and not bench.engine.has_work
    assert bench.say(SetFlow((1,), Flow.PARK)).stats.blocks_leased == 0
    out = bench.say(SetFlow((1,), Flow.RUN))
    assert out.rids == [1] and out.stats.step_tokens == 5


def test_snapshot_is_said_when_a_step_samples_nothing() -> None:
    """A chunk of a long prompt."""
    out = Bench().say(submit(1, n_prompt=40))
    assert out.rids == [] and out.stats.step_tokens == 16


def test_abort_is_applied_when_it_arrives_while_the_step_is_computed() -> None:
    """Its token is not said any more; the other's is."""
    bench = Bench()
    (out,) = bench.step([submit(1, 2)], [Abort(1, FinishReason.CANCELLED)])
    assert isinstance(out, StepOut)
    assert out.rids == [2] and ends_of(out) == [(1, FinishReason.CANCELLED)]
    assert (out.stats.wasted_tokens_total, out.stats.blocks_leased, out.stats.blocks_fenced) == (1, 1, 0)


def test_abort_does_nothing_when_the_id_is_unknown() -> None:
    """Its sender gets the end of the sequence from elsewhere."""
    assert (
        Bench().step(
            [
                Abort(9, FinishReason.CANCELLED),
                SetFlow((9,), Flow.PAUSE),
                SetFlow((9,), Flow.RUN),
                SetFlow((9,), Flow.PARK),
            ]
        )
        == []
    )


def test_step_raises_when_a_message_is_none_that_it_knows() -> None:
    """The pipe decodes a closed union: this would be a bug of ours."""
    stranger: Any = object()
    with pytest.raises(AssertionError):
        Bench().step([stranger])


def test_runner_learns_of_an_end_with_the_next_plan() -> None:
    """Once."""
    bench = Bench()
    bench.say(submit(1, 2))
    bench.say(Abort(1, FinishReason.CANCELLED))
    bench.say()
    bench.say()
    assert [plan.retired for plan in bench.runner.plans] == [(), (1,), ()]


def test_an_end_is_told_before_the_next_step_is_computed_when_somebody_leaves() -> None:
    """In a word of its own; the others go on in the next round, which is wanted at once."""
    bench = Bench()
    bench.say(submit(1, 2))
    out = bench.say(Abort(1, FinishReason.CANCELLED))
    assert (ends_of(out), out.rids, len(bench.runner.plans)) == ([(1, FinishReason.CANCELLED)], [], 1)
    assert bench.engine.has_work
    assert bench.say().rids == [2]


@pytest.mark.parametrize(("seed", "expected"), [(None, 77), (0, 0), (5, 5), (-1, (1 << 64) - 1), ((1 << 64) + 3, 3)])
def test_seed_is_the_requests_own_or_drawn(seed: int | None, expected: int) -> None:
    """Unsigned, 64 bit."""
    bench = Bench()
    bench.say(submit(1, seed=seed))
    assert bench.runner.plans[0].rows[0].seed == expected


def test_audit_is_answered_after_the_step() -> None:
    """With what is held then."""
    bench = Bench()
    out, audit = bench.step([submit(1), AuditEngine(41)])
    assert isinstance(out, StepOut) and isinstance(audit, EngineAudit)
    assert (audit.query_id, audit.violations) == (41, ())
    (line,) = audit.live
    assert (line.rid, line.state, line.known_tokens, line.computed_tokens, line.blocks) == (1, "running", 5, 4, 1)
    # The audit is itself a part of the round, so it cannot know how long it took.
    told_s = audit.stats.publish_s_total
    assert audit.stats == msgspec.structs.replace(bench.engine.stats, publish_s_total=told_s)


def test_audit_is_answered_when_the_engine_is_idle() -> None:
    """Each query once."""
    bench = Bench()
    answers = bench.step([AuditEngine(1), AuditEngine(2)])
    assert [answer.query_id for answer in answers if isinstance(answer, EngineAudit)] == [1, 2]
    assert bench.step() == []


@pytest.mark.parametrize("failure", ["fails_to_launch", "fails_to_wait", "answers_too_little"])
def test_only_the_plan_ends_when_the_runner_fails(failure: str) -> None:
    """Its sequences end as errors, without the words of the exception; one that waits is served by the next step."""
    bench = Bench(max_running=2)
    setattr(bench.runner, failure, True)
    out = bench.say(submit(1), submit(2), submit(3))
    assert out.ends == [SequenceEnd(rid, FinishReason.ERROR, ENGINE_FAULT, Held("running", 1)) for rid in (1, 2)]
    assert ENGINE_FAULT.status == 500 and "secret" not in ENGINE_FAULT.message
    assert [type(fault) for fault in bench.faults] == [InvariantError if failure == "answers_too_little" else Broken]
    assert out.stats.blocks_free == 64 and bench.engine.has_work
    setattr(bench.runner, failure, False)
    assert bench.say().rids == [3]


def test_who_leaves_while_a_step_is_computed_ends_with_that_step() -> None:
    """Until the very end of it: its token is dropped, and the word of its end is that of the step."""
    arrived: list[ToEngine] = [submit(1, 2)]

    def leave(_: float) -> None:
        arrived.append(Abort(1, FinishReason.CANCELLED))

    bench = Bench(FakeRunner(n_blocks=64, block_tokens=4, step_s=1.0, sleep=leave))

    def receive() -> list[ToEngine]:
        messages = [*arrived]
        arrived.clear()
        return messages

    (out,) = bench.engine.step(receive)
    assert isinstance(out, StepOut)
    assert (ends_of(out), out.rids, out.stats.wasted_tokens_total) == ([(1, FinishReason.CANCELLED)], [2], 1)
    assert (out.stats.blocks_leased, out.stats.blocks_fenced) == (1, 0), "with the step, the other one's alone"


def test_messages_are_applied_when_the_launch_has_failed() -> None:
    """What arrived meanwhile is not lost."""
    bench = Bench()
    bench.runner.fails_to_launch = True
    (out,) = bench.step([submit(1)], [submit(2), Abort(1, FinishReason.CANCELLED)])
    assert isinstance(out, StepOut)
    assert ends_of(out) == [(1, FinishReason.CANCELLED)], "the first end wins"
    assert [start.rid for start in out.starts] == [1, 2]


def test_invariants_are_looked_at_when_the_engine_comes_to_rest() -> None:
    """Once; what is broken is reported, and does not stop it."""
    bench = Bench()
    bench.say(submit(1, max_tokens=1))
    bench.table.pool.take(1)
    bench.step()
    assert [str(fault) for fault in bench.faults] == ["I2: free, leased and fenced blocks do not partition the pool"]
    bench.step()
    assert len(bench.faults) == 1
    bench.say(submit(2, max_tokens=1))
    assert len(bench.faults) == 1, "not while it is at work"


def test_invariants_are_not_looked_at_when_a_sequence_is_paused() -> None:
    """That is no rest: each pause would cost a look at every block."""
    bench = Bench()
    bench.say(submit(1))
    bench.table.pool.take(1)
    bench.step([SetFlow((1,), Flow.PAUSE)])
    assert bench.faults == []


def test_answers_are_the_same_when_many_share_the_engine() -> None:
    """Forty over four slots, against each alone."""

    def answers(*groups: Submit) -> dict[Rid, list[int]]:
        bench = Bench(FakeRunner(n_blocks=64, block_tokens=4, eos_token_id=EOS, eos_every=6))
        found: dict[Rid, list[int]] = {}
        arriving: Iterable[ToEngine] = groups
        while arriving or bench.engine.has_work:
            for out in bench.step(arriving):
                assert isinstance(out, StepOut)
                for rid, token_id in zip(out.rids, out.token_ids, strict=True):
                    found.setdefault(rid, []).append(token_id)
            arriving = ()
        assert bench.faults == [] and bench.engine.live_rids() == []
        return found

    groups = [submit(rid, n_prompt=1 + rid % 11, max_tokens=1 + rid % 9) for rid in range(40)]
    alone = [answers(group) for group in groups]
    assert answers(*groups) == {rid: answer for each in alone for rid, answer in each.items()}


@pytest.mark.parametrize("is_under_way", [False, True])
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_answer_is_the_same_when_it_was_parked_and_its_slot_served_another(
    speculation: str, is_under_way: bool
) -> None:
    """What it held is free meanwhile, also where a step was computing for it; then it is computed again, exactly."""
    whole = [token_id for out in answer_to_one() for token_id in out.token_ids]
    bench = Bench(FakeRunner(n_blocks=64, block_tokens=4, period=7), max_running=1, speculation=speculation)
    said = [bench.say(submit(1, max_tokens=40)), bench.say(), bench.say()]
    (before, meanwhile) = ([], [SetFlow((1,), Flow.PARK)]) if is_under_way else ([SetFlow((1,), Flow.PARK)], [])
    said += [out for out in bench.step(before, meanwhile) if isinstance(out, StepOut)]
    stats = bench.engine.stats
    assert (stats.running, stats.paused, stats.blocks_free, bench.engine.live_rids()) == (0, 1, 64, [1])
    assert ends_of(bench.say(submit(2, max_tokens=1))) == [(2, FinishReason.LENGTH)]
    said.append(bench.say(SetFlow((1,), Flow.RUN)))
    while bench.engine.has_work:
        said.append(bench.say())
    assert [token_id for out in said for token_id in out.token_ids] == whole
    assert bench.faults == [] and bench.engine.stats.blocks_free == 64


def answer_to_one(**limits: Any) -> list[StepOut]:
    """All that is said of a sequence whose text has a refrain of six tokens."""
    bench = Bench(FakeRunner(n_blocks=64, block_tokens=4, period=7), **limits)
    outs = [bench.say(submit(1, max_tokens=40))]
    while bench.engine.has_work:
        outs.append(bench.say())
    return outs


def test_tokens_of_one_sequence_are_said_in_order_when_a_step_gives_several() -> None:
    """The same as one by one, in fewer words; and the drafts are counted."""
    drafted, plain = answer_to_one(speculation="ngram"), answer_to_one()
    assert [token_id for out in drafted for token_id in out.token_ids] == [out.token_ids[0] for out in plain]
    assert len(plain) == 40 and len(drafted) < 30
    assert {tuple(out.rids) for out in drafted} > {(1,), (1,) * 5}
    stats = drafted[-1].stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total == 40 - len(drafted)


def test_progress_is_said_with_the_step_when_a_request_is_watched() -> None:
    """In the word that has the tokens, if there are any. The clock goes on by a second whenever it is read."""
    bench = Bench(max_running=1)
    bench.say(submit(1, n_prompt=4))
    out = bench.say(msgspec.structs.replace(submit(2, 3, n_prompt=24), is_watched=True))
    assert out.rids == [1] and out.progress == [Progressed(2, Progress(1, 0, 24))]
    assert bench.say().progress == []
    first, *told = [bench.say(Abort(1, FinishReason.CANCELLED)), bench.say(), bench.say(), bench.say()]
    assert ends_of(first) == [(1, FinishReason.CANCELLED)] and first.progress == []
    assert [out.progress for out in told] == [
        [Progressed(2, Progress(0, 16, 24))],
        [Progressed(2, Progress(0, 24, 24))],
        [],
    ]


def test_progress_is_said_when_nothing_else_is() -> None:
    """A place has changed though nothing runs: those before it were left out of plans."""
    bench = Bench(max_running=1)
    bench.say(submit(1))
    bench.say(SetFlow((1,), Flow.PAUSE), submit(2))
    assert bench.say(msgspec.structs.replace(submit(3), is_watched=True)).progress == [Progressed(3, Progress(2, 0, 4))]
    assert bench.say(SetFlow((2,), Flow.PARK)).progress == [Progressed(3, Progress(1, 0, 4))]


def test_a_step_in_which_the_model_gave_no_token_is_a_fault_that_is_told() -> None:
    """Its sequence ends with an error, the other one goes on, and the engine serves on."""
    bench = Bench()
    bench.runner.gives_no_token_first = True
    out = bench.say(submit(1, 2))
    assert ends_of(out) == [(1, FinishReason.ERROR)] and out.rids == [2]
    assert [type(fault) for fault in bench.faults] == [ModelFault]
    bench.runner.gives_no_token_first = False
    assert bench.say(submit(3)).rids == [2, 3]
    assert len(bench.faults) == 1


def test_a_request_that_cannot_be_taken_in_is_refused_alone() -> None:
    """Whatever breaks on the way: what came with it, and what runs, goes on."""
    bench = Bench()
    bench.say(submit(1))
    bench.seed_fault = Broken("a secret path")
    out = bench.say(submit(2, 3))
    assert [(rejection.rids, rejection.refusal) for rejection in out.rejections] == [((2, 3), ENGINE_FAULT)]
    assert ends_of(out) == []
    bench.seed_fault = None
    assert bench.say(submit(4)).rids == [1, 4]
    assert [type(fault) for fault in bench.faults] == [Broken]


@pytest.mark.parametrize(
    ("wish", "is_ended"),
    [
        (Abort(1, FinishReason.CANCELLED), True),
        (SetFlow((1,), Flow.PAUSE), True),
        (SetFlow((1,), Flow.RUN), True),
        (SetFlow((1,), Flow.PARK), True),
        (AuditEngine(5), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_wish_that_cannot_be_carried_out_ends_whom_it_is_about(
    monkeypatch: pytest.MonkeyPatch, wish: ToEngine, is_ended: bool
) -> None:
    """And nobody else."""
    bench = Bench()
    bench.say(submit(1), submit(2))

    def fail(*_: object) -> None:
        raise Broken("a secret path")

    monkeypatch.setattr(bench.engine, "_apply_one", fail)
    out = bench.say(wish)
    monkeypatch.undo()
    assert ends_of(out) == ([(1, FinishReason.ERROR)] if is_ended else [])
    assert [type(fault) for fault in bench.faults] == [Broken]
    assert 2 in bench.engine.live_rids() and bench.say(submit(3)).rids[-1] == 3


def test_a_fault_in_planning_ends_what_lives_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be told to be of one sequence; the next request is served, and every block is free again."""
    bench = Bench()
    bench.say(submit(1), submit(2))

    def fail(self: BatchPlanner) -> None:
        raise Broken("a secret path")

    monkeypatch.setattr(BatchPlanner, "fill", fail)
    out = bench.say()
    monkeypatch.undo()
    assert ends_of(out) == [(1, FinishReason.ERROR), (2, FinishReason.ERROR)]
    assert all(end.refusal == ENGINE_FAULT for end in out.ends)
    assert ends_of(bench.say(submit(3, max_tokens=1))) == [(3, FinishReason.LENGTH)]
    assert [type(fault) for fault in bench.faults] == [Broken]
    assert bench.engine.stats.blocks_free == 64
