"""A step of the engine: commands in, and one message with all news out."""

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
    """An error that a runner raises."""


class FlakyRunner:
    """Wraps the fake runner, records the plans, and fails where a test asks for it."""

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


class EngineDriver:
    """Drives an engine with a flaky runner."""

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
        """Run one step, with messages that arrive before it and while it is computed."""
        batches: Iterator[Iterable[ToEngine]] = iter((before, meanwhile))
        return self.engine.step(lambda: next(batches))

    def send(self, *messages: ToEngine) -> StepOut:
        """Run one step with these messages, and return its only output."""
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


def test_idle_engine_sends_nothing() -> None:
    driver = EngineDriver()
    assert driver.step() == []
    assert not driver.engine.has_work and driver.engine.live_rids() == []


def test_start_and_first_token_come_in_one_message() -> None:
    """With the snapshot taken after the step."""
    driver = EngineDriver()
    out = driver.send(submit(1, 2))
    assert out.starts == [Accepted(1, 4, 0), Accepted(2, 4, 0)]
    assert out.rids == [1, 2] and len(out.token_ids) == 2
    assert (out.stats.step_id, out.stats.running, out.stats.step_tokens, out.stats.step_s) == (1, 2, 8, 2.0)
    assert driver.engine.has_work and driver.engine.live_rids() == [1, 2]
    assert (driver.engine.stats.generated_tokens_total, driver.engine.stats.step_s) == (2, 0.0)


def test_time_is_reported_by_part() -> None:
    """Each read of the clock advances it by a second: one for each part, and none while the engine is idle."""
    driver = EngineDriver()
    driver.send(submit(1, max_tokens=2))
    stats = driver.send().stats
    assert (stats.plan_s_total, stats.model_s_total, stats.commit_s_total, stats.publish_s_total) == (2, 2, 2, 1)
    driver.step()
    stats = driver.engine.stats
    assert (stats.plan_s_total, stats.model_s_total, stats.commit_s_total, stats.publish_s_total) == (3, 2, 2, 3)


def test_end_comes_with_the_last_token() -> None:
    driver = EngineDriver()
    assert driver.send(submit(1, max_tokens=2)).ends == []
    out = driver.send()
    assert out.rids == [1] and out.ends == [SequenceEnd(1, FinishReason.LENGTH, held=Held("running", 2))]
    assert driver.step() == [] and not driver.engine.has_work


def test_logprobs_come_in_the_message_of_their_token() -> None:
    """Only for sequences that asked for them."""
    driver = EngineDriver()
    assert driver.send(submit(1)).logprobs == {}
    wanting = SamplingParams(max_tokens=8, temperature=0.0, logprobs=1)
    out = driver.send(Submit((SequenceMessage(rid=2, prompt_token_ids=(1, 2), sampling=wanting),)))
    assert (out.rids, list(out.logprobs)) == ([1, 2], [1])
    assert out.logprobs[1].top_ids == (out.token_ids[1],)


def test_rejection_is_sent_although_no_step_runs() -> None:
    out = EngineDriver().send(submit(1, 2, n_prompt=0))
    (rejection,) = out.rejections
    assert rejection.rids == (1, 2) and rejection.refusal.status == 400
    assert (out.stats.step_id, out.stats.step_tokens, out.stats.step_s) == (0, 0, 0.0)


def test_snapshot_is_sent_when_nothing_else_has_changed() -> None:
    """A pause changes the snapshot alone. The same snapshot is not sent twice."""
    driver = EngineDriver()
    driver.send(submit(1))
    out = driver.send(SetFlow((1,), Flow.PAUSE))
    assert (out.rids, out.stats.paused, out.stats.step_s) == ([], 1, 0.0)
    assert driver.step([SetFlow((1,), Flow.PAUSE)]) == [] and not driver.engine.has_work
    assert driver.send(SetFlow((1,), Flow.PARK)).stats.blocks_leased == 0
    out = driver.send(SetFlow((1,), Flow.RUN))
    assert out.rids == [1] and out.stats.step_tokens == 5


def test_snapshot_is_sent_after_a_step_that_samples_nothing() -> None:
    """The step computes a chunk of a long prompt."""
    out = EngineDriver().send(submit(1, n_prompt=40))
    assert out.rids == [] and out.stats.step_tokens == 16


def test_abort_is_applied_when_it_arrives_while_the_step_is_computed() -> None:
    """The token of the aborted sequence is dropped, and that of the other one is sent."""
    driver = EngineDriver()
    (out,) = driver.step([submit(1, 2)], [Abort(1, FinishReason.CANCELLED)])
    assert isinstance(out, StepOut)
    assert out.rids == [2] and ends_of(out) == [(1, FinishReason.CANCELLED)]
    assert (out.stats.wasted_tokens_total, out.stats.blocks_leased, out.stats.blocks_fenced) == (1, 1, 0)


def test_commands_do_nothing_when_the_id_is_unknown() -> None:
    assert (
        EngineDriver().step(
            [
                Abort(9, FinishReason.CANCELLED),
                SetFlow((9,), Flow.PAUSE),
                SetFlow((9,), Flow.RUN),
                SetFlow((9,), Flow.PARK),
            ]
        )
        == []
    )


def test_unknown_message_raises() -> None:
    """The pipe decodes a closed union, so this would be a bug."""
    stranger: Any = object()
    with pytest.raises(AssertionError):
        EngineDriver().step([stranger])


def test_runner_learns_once_of_an_end_with_the_next_plan() -> None:
    driver = EngineDriver()
    driver.send(submit(1, 2))
    driver.send(Abort(1, FinishReason.CANCELLED))
    driver.send()
    driver.send()
    assert [plan.retired for plan in driver.runner.plans] == [(), (1,), ()]


def test_end_of_an_aborted_sequence_is_sent_before_the_next_step() -> None:
    """It has a message of its own. The other sequences go on in the next round."""
    driver = EngineDriver()
    driver.send(submit(1, 2))
    out = driver.send(Abort(1, FinishReason.CANCELLED))
    assert (ends_of(out), out.rids, len(driver.runner.plans)) == ([(1, FinishReason.CANCELLED)], [], 1)
    assert driver.engine.has_work
    assert driver.send().rids == [2]


@pytest.mark.parametrize(("seed", "expected"), [(None, 77), (0, 0), (5, 5), (-1, (1 << 64) - 1), ((1 << 64) + 3, 3)])
def test_seed_is_that_of_the_request_or_a_random_one(seed: int | None, expected: int) -> None:
    """As an unsigned number of 64 bits."""
    driver = EngineDriver()
    driver.send(submit(1, seed=seed))
    assert driver.runner.plans[0].rows[0].seed == expected


def test_audit_is_answered_after_the_step() -> None:
    """It shows what is held then."""
    driver = EngineDriver()
    out, audit = driver.step([submit(1), AuditEngine(41)])
    assert isinstance(out, StepOut) and isinstance(audit, EngineAudit)
    assert (audit.query_id, audit.violations) == (41, ())
    (line,) = audit.live
    assert (line.rid, line.state, line.known_tokens, line.computed_tokens, line.blocks) == (1, "running", 5, 4, 1)
    # The audit is part of the round that it reports, so its time is not complete.
    publish_s = audit.stats.publish_s_total
    assert audit.stats == msgspec.structs.replace(driver.engine.stats, publish_s_total=publish_s)


def test_audit_is_answered_when_the_engine_is_idle() -> None:
    driver = EngineDriver()
    answers = driver.step([AuditEngine(1), AuditEngine(2)])
    assert [answer.query_id for answer in answers if isinstance(answer, EngineAudit)] == [1, 2]
    assert driver.step() == []


@pytest.mark.parametrize("failure", ["fails_to_launch", "fails_to_wait", "answers_too_little"])
def test_runner_failure_ends_only_the_sequences_of_the_plan(failure: str) -> None:
    """Clients do not see the text of the exception. A waiting sequence is served by the next step."""
    driver = EngineDriver(max_running=2)
    setattr(driver.runner, failure, True)
    out = driver.send(submit(1), submit(2), submit(3))
    assert out.ends == [SequenceEnd(rid, FinishReason.ERROR, ENGINE_FAULT, Held("running", 1)) for rid in (1, 2)]
    assert ENGINE_FAULT.status == 500 and "secret" not in ENGINE_FAULT.message
    assert [type(fault) for fault in driver.faults] == [InvariantError if failure == "answers_too_little" else Broken]
    assert out.stats.blocks_free == 64 and driver.engine.has_work
    setattr(driver.runner, failure, False)
    assert driver.send().rids == [3]


def test_sequence_aborted_during_a_step_ends_with_that_step() -> None:
    """Its token is dropped, and its end is in the message of the step."""
    arrived: list[ToEngine] = [submit(1, 2)]

    def leave(_: float) -> None:
        arrived.append(Abort(1, FinishReason.CANCELLED))

    driver = EngineDriver(FakeRunner(n_blocks=64, block_tokens=4, step_s=1.0, sleep=leave))

    def receive() -> list[ToEngine]:
        messages = [*arrived]
        arrived.clear()
        return messages

    (out,) = driver.engine.step(receive)
    assert isinstance(out, StepOut)
    assert (ends_of(out), out.rids, out.stats.wasted_tokens_total) == ([(1, FinishReason.CANCELLED)], [2], 1)
    assert (out.stats.blocks_leased, out.stats.blocks_fenced) == (1, 0), (
        "only the other sequence holds a block after the step"
    )


def test_messages_are_applied_after_a_failed_launch() -> None:
    driver = EngineDriver()
    driver.runner.fails_to_launch = True
    (out,) = driver.step([submit(1)], [submit(2), Abort(1, FinishReason.CANCELLED)])
    assert isinstance(out, StepOut)
    assert ends_of(out) == [(1, FinishReason.CANCELLED)], "the first end wins"
    assert [start.rid for start in out.starts] == [1, 2]


def test_invariants_are_checked_once_when_the_engine_becomes_idle() -> None:
    """A broken one is reported, and the engine goes on."""
    driver = EngineDriver()
    driver.send(submit(1, max_tokens=1))
    driver.table.pool.take(1)
    driver.step()
    assert [str(fault) for fault in driver.faults] == ["I2: free, leased and fenced blocks do not partition the pool"]
    driver.step()
    assert len(driver.faults) == 1
    driver.send(submit(2, max_tokens=1))
    assert len(driver.faults) == 1, "no check while the engine works"


def test_invariants_are_not_checked_while_a_sequence_is_paused() -> None:
    """The engine is not idle then, and a check reads every block."""
    driver = EngineDriver()
    driver.send(submit(1))
    driver.table.pool.take(1)
    driver.step([SetFlow((1,), Flow.PAUSE)])
    assert driver.faults == []


def test_answers_are_the_same_in_a_shared_engine_as_alone() -> None:
    """Forty sequences share four slots."""

    def answers(*groups: Submit) -> dict[Rid, list[int]]:
        driver = EngineDriver(FakeRunner(n_blocks=64, block_tokens=4, eos_token_id=EOS, eos_every=6))
        found: dict[Rid, list[int]] = {}
        arriving: Iterable[ToEngine] = groups
        while arriving or driver.engine.has_work:
            for out in driver.step(arriving):
                assert isinstance(out, StepOut)
                for rid, token_id in zip(out.rids, out.token_ids, strict=True):
                    found.setdefault(rid, []).append(token_id)
            arriving = ()
        assert driver.faults == [] and driver.engine.live_rids() == []
        return found

    groups = [submit(rid, n_prompt=1 + rid % 11, max_tokens=1 + rid % 9) for rid in range(40)]
    alone = [answers(group) for group in groups]
    assert answers(*groups) == {rid: answer for each in alone for rid, answer in each.items()}


@pytest.mark.parametrize("is_under_way", [False, True])
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_answer_is_the_same_after_parking_while_another_runs(speculation: str, is_under_way: bool) -> None:
    """Its slot and blocks are free meanwhile, even if a step was computing it. Then it is computed again."""
    whole = [token_id for out in answer_to_one() for token_id in out.token_ids]
    driver = EngineDriver(FakeRunner(n_blocks=64, block_tokens=4, period=7), max_running=1, speculation=speculation)
    outs = [driver.send(submit(1, max_tokens=40)), driver.send(), driver.send()]
    (before, meanwhile) = ([], [SetFlow((1,), Flow.PARK)]) if is_under_way else ([SetFlow((1,), Flow.PARK)], [])
    outs += [out for out in driver.step(before, meanwhile) if isinstance(out, StepOut)]
    stats = driver.engine.stats
    assert (stats.running, stats.paused, stats.blocks_free, driver.engine.live_rids()) == (0, 1, 64, [1])
    assert ends_of(driver.send(submit(2, max_tokens=1))) == [(2, FinishReason.LENGTH)]
    outs.append(driver.send(SetFlow((1,), Flow.RUN)))
    while driver.engine.has_work:
        outs.append(driver.send())
    assert [token_id for out in outs for token_id in out.token_ids] == whole
    assert driver.faults == [] and driver.engine.stats.blocks_free == 64


def answer_to_one(**limits: Any) -> list[StepOut]:
    """Return all messages about one sequence whose text repeats itself."""
    driver = EngineDriver(FakeRunner(n_blocks=64, block_tokens=4, period=7), **limits)
    outs = [driver.send(submit(1, max_tokens=40))]
    while driver.engine.has_work:
        outs.append(driver.send())
    return outs


def test_tokens_of_accepted_drafts_are_sent_in_order() -> None:
    """They are the same as without drafts, in fewer messages. The drafts are counted."""
    drafted, plain = answer_to_one(speculation="ngram"), answer_to_one()
    assert [token_id for out in drafted for token_id in out.token_ids] == [out.token_ids[0] for out in plain]
    assert len(plain) == 40 and len(drafted) < 30
    assert {tuple(out.rids) for out in drafted} > {(1,), (1,) * 5}
    stats = drafted[-1].stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total == 40 - len(drafted)


def test_progress_of_a_watched_request_comes_with_the_step() -> None:
    """In the message with the tokens, if there are any. Each read of the clock advances it by a second."""
    driver = EngineDriver(max_running=1)
    driver.send(submit(1, n_prompt=4))
    out = driver.send(msgspec.structs.replace(submit(2, 3, n_prompt=24), is_watched=True))
    assert out.rids == [1] and out.progress == [Progressed(2, Progress(1, 0, 24))]
    assert driver.send().progress == []
    first, *later = [driver.send(Abort(1, FinishReason.CANCELLED)), driver.send(), driver.send(), driver.send()]
    assert ends_of(first) == [(1, FinishReason.CANCELLED)] and first.progress == []
    assert [out.progress for out in later] == [
        [Progressed(2, Progress(0, 16, 24))],
        [Progressed(2, Progress(0, 24, 24))],
        [],
    ]


def test_progress_is_sent_when_nothing_else_has_changed() -> None:
    """The position changes although no step runs, because the sequences before it are paused and parked."""
    driver = EngineDriver(max_running=1)
    driver.send(submit(1))
    driver.send(SetFlow((1,), Flow.PAUSE), submit(2))
    assert driver.send(msgspec.structs.replace(submit(3), is_watched=True)).progress == [
        Progressed(3, Progress(2, 0, 4))
    ]
    assert driver.send(SetFlow((2,), Flow.PARK)).progress == [Progressed(3, Progress(1, 0, 4))]


def test_missing_token_is_reported_as_a_fault() -> None:
    """Its sequence ends with an error. The other one goes on, and the engine serves later requests."""
    driver = EngineDriver()
    driver.runner.gives_no_token_first = True
    out = driver.send(submit(1, 2))
    assert ends_of(out) == [(1, FinishReason.ERROR)] and out.rids == [2]
    assert [type(fault) for fault in driver.faults] == [ModelFault]
    driver.runner.gives_no_token_first = False
    assert driver.send(submit(3)).rids == [2, 3]
    assert len(driver.faults) == 1


def test_submission_that_fails_is_refused_alone() -> None:
    """Running sequences and other submissions are not affected."""
    driver = EngineDriver()
    driver.send(submit(1))
    driver.seed_fault = Broken("a secret path")
    out = driver.send(submit(2, 3))
    assert [(rejection.rids, rejection.refusal) for rejection in out.rejections] == [((2, 3), ENGINE_FAULT)]
    assert ends_of(out) == []
    driver.seed_fault = None
    assert driver.send(submit(4)).rids == [1, 4]
    assert [type(fault) for fault in driver.faults] == [Broken]


# Messages with a field that cannot be read, so that the engine fails while it applies them.


class BrokenAbort(Abort, frozen=True):
    @property  # type: ignore[misc]
    def reason(self) -> FinishReason:
        raise Broken("a secret path")


class BrokenSetFlow(SetFlow, frozen=True):
    @property  # type: ignore[misc]
    def flow(self) -> Flow:
        raise Broken("a secret path")


class BrokenAuditEngine(AuditEngine, frozen=True):
    @property  # type: ignore[misc]
    def query_id(self) -> int:
        raise Broken("a secret path")


@pytest.mark.parametrize(
    ("command", "is_ended"),
    [
        (BrokenAbort(1, FinishReason.CANCELLED), True),
        (BrokenSetFlow((1,), Flow.PAUSE), True),
        (BrokenAuditEngine(5), False),
    ],
    ids=["abort", "set_flow", "audit"],
)
def test_command_that_fails_ends_only_its_own_sequence(command: ToEngine, is_ended: bool) -> None:
    driver = EngineDriver()
    driver.send(submit(1), submit(2))
    out = driver.send(command)
    assert ends_of(out) == ([(1, FinishReason.ERROR)] if is_ended else [])
    assert [type(fault) for fault in driver.faults] == [Broken]
    assert 2 in driver.engine.live_rids() and driver.send(submit(3)).rids[-1] == 3


def test_fault_in_planning_ends_all_live_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine cannot know which sequence caused it. The next request is served, and every block is free again."""
    driver = EngineDriver()
    driver.send(submit(1), submit(2))

    def fail(self: BatchPlanner) -> None:
        raise Broken("a secret path")

    monkeypatch.setattr(BatchPlanner, "fill", fail)
    out = driver.send()
    monkeypatch.undo()
    assert ends_of(out) == [(1, FinishReason.ERROR), (2, FinishReason.ERROR)]
    assert all(end.refusal == ENGINE_FAULT for end in out.ends)
    assert ends_of(driver.send(submit(3, max_tokens=1))) == [(3, FinishReason.LENGTH)]
    assert [type(fault) for fault in driver.faults] == [Broken]
    assert driver.engine.stats.blocks_free == 64
