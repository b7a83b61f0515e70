"""The step loop without the loop: one call of `step` does one round for everything that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, assert_never

import msgspec

from sluiceway.config import EngineConfig
from sluiceway.engine.parts import Part, Parts
from sluiceway.engine.runner import Runner
from sluiceway.engine.scheduler.outputs import Outputs
from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, StepResult
from sluiceway.engine.scheduler.request import Submission
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.errors import InvariantError, ModelFault, Refusal
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, Sequence, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import (
    EngineAudit,
    FromEngine,
    GroupRejection,
    SequenceEnd,
    SequenceStart,
    StepOut,
)
from sluiceway.types import EngineStats, FinishReason, Progress, Rid

T = TypeVar("T")

Receive = Callable[[], Iterable[ToEngine]]
"""What arrived since the last call; does not wait."""

ENGINE_FAULT = Refusal(status=500, code="engine_fault", message="The engine failed while it computed this request.")
"""All that a client learns of a fault; the rest goes to `on_fault`."""

_SEED_MASK = (1 << 64) - 1


class Engine:
    """Scheduler and runner, joined. Not safe for threads: one loop owns it and calls `step`.

    `draw_seed` gives 64 random bits to each sequence that brings no seed. `on_fault` is told of every exception of the
    runner, of every broken invariant, and of every step in which the model gave no number for a token; the engine goes
    on after each of them.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        draw_seed: Callable[[], int],
        now_s: Callable[[], float],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._scheduler = Scheduler(config)
        self._runner = runner
        self._draw_seed = draw_seed
        self._parts = Parts(now_s)
        self._on_fault = on_fault
        self._audits: list[int] = []
        self._said = self._scheduler.stats()
        """The last snapshot that was published, without the figures of its step."""
        self._is_checked = True
        """Nothing has lived since the invariants were looked at."""

    @property
    def has_work(self) -> bool:
        """Whether to call `step` again at once. If not, only a message brings the engine on: sleep until one comes."""
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """The snapshot as of now."""
        return self._snapshot()

    def live_rids(self) -> list[Rid]:
        """Every sequence that had a start and no end yet."""
        return [sequence.rid for sequence in self._scheduler.live_sequences()]

    def step(self, receive: Receive) -> list[FromEngine]:
        """One round: apply what arrived, plan, compute, commit. What there is to say, in order; empty if nothing is.

        Where what arrived makes news that nobody should wait for, the round ends with it: `has_work` says that the next
        one is wanted at once.
        `receive` is called before planning, and again when the step is computed: who has left by then is spared its
        result. Wishes are carried out in here only, and never raise.
        """
        self._parts.enter(Part.PLAN)
        self._apply(receive())
        # Whoever waits for a release, or to hear that they are accepted, shall not wait for a step.
        plan = None if self._scheduler.has_news else self._plan()
        if plan is None:
            self._check_if_idle()
            return self._say(self._parts.enter(Part.PUBLISH), 0.0, 0)
        self._is_checked = False
        started_s = self._parts.enter(Part.MODEL)
        self._compute(plan, receive)
        now_s = self._parts.enter(Part.PUBLISH)
        self._scheduler.observe(plan, now_s - started_s)
        return self._say(now_s, now_s - started_s, plan.n_tokens)

    def _say(self, now_s: float, step_s: float, step_tokens: int) -> list[FromEngine]:
        said: list[FromEngine] = [*self._step_out(now_s, step_s, step_tokens), *self._audit_answers()]
        if not self.has_work:
            self._parts.rest()
        return said

    def _plan(self) -> Plan | None:
        """The next step. A fault in planning cannot be told to be of one sequence: all that live end."""
        try:
            return self._scheduler.plan()
        except Exception as error:
            self._on_fault(error)
            for rid in self.live_rids():
                self._scheduler.finish(rid, FinishReason.ERROR, ENGINE_FAULT)
            return None

    def _apply(self, messages: Iterable[ToEngine]) -> None:
        for message in messages:
            try:
                self._apply_one(message)
            except Exception as error:
                self._on_fault(error)
                self._give_up(message)

    def _give_up(self, message: ToEngine) -> None:
        """A message could not be carried out: the sequences that it names end with an error, and no others."""
        match message:
            case Submit(sequences):
                self._scheduler.fail([sequence.rid for sequence in sequences], ENGINE_FAULT)
            case Abort(rid):
                self._scheduler.finish(rid, FinishReason.ERROR, ENGINE_FAULT)
            case SetFlow(rids):
                for rid in rids:
                    self._scheduler.finish(rid, FinishReason.ERROR, ENGINE_FAULT)
            case AuditEngine():
                pass
            case _:
                assert_never(message)

    def _apply_one(self, message: ToEngine) -> None:
        scheduler = self._scheduler
        match message:
            case Submit(sequences, is_watched):
                scheduler.submit([self._submission(sequence) for sequence in sequences], is_watched=is_watched)
            case Abort(rid, reason):
                scheduler.finish(rid, reason)
            case SetFlow(rids, flow):
                for rid in rids:
                    scheduler.set_flow(rid, flow)
            case AuditEngine(query_id):
                self._audits.append(query_id)
            case _:
                assert_never(message)

    def _submission(self, sequence: Sequence) -> Submission:
        seed = sequence.sampling.seed
        seed = self._draw_seed() if seed is None else seed
        return Submission(sequence.rid, sequence.prompt_token_ids, sequence.sampling, seed & _SEED_MASK)

    def _compute(self, plan: Plan, receive: Receive) -> None:
        """Run a plan to its end. If the runner fails, every sequence of the plan ends, and nobody else."""
        step = self._attempt(lambda: self._runner.launch(plan))
        result = None if step is None else self._attempt(step.wait)
        self._parts.enter(Part.COMMIT)
        # As late as can be: whoever has left by now is told to have ended with this step, not after it.
        self._apply(receive())
        if result is None or self._attempt(lambda: self._commit(plan, result)) is None:
            self._scheduler.abandon(plan, ENGINE_FAULT)

    def _commit(self, plan: Plan, result: StepResult) -> bool:
        self._scheduler.commit(plan, result)
        if NO_TOKEN in result.token_ids:
            self._on_fault(ModelFault(f"no logit above minus infinity for a token of step {plan.step_id}"))
        return True

    def _attempt(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except Exception as error:
            self._on_fault(error)
            return None

    def _check_if_idle(self) -> None:
        """Look at the invariants each time that the engine has come to rest."""
        if self._is_checked or not self._scheduler.is_empty:
            return
        self._is_checked = True
        for sentence in self._scheduler.violations():
            self._on_fault(InvariantError(sentence))

    def _step_out(self, now_s: float, step_s: float, step_tokens: int) -> Iterable[StepOut]:
        outputs, snapshot = self._scheduler.drain(), self._scheduler.stats()
        progress = self._scheduler.progress(now_s)
        if not outputs and not progress and snapshot == self._said:
            return []
        self._said = snapshot
        return [_step_out(outputs, progress, self._snapshot(step_s=step_s, step_tokens=step_tokens))]

    def _snapshot(self, *, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
        stats = self._scheduler.stats(step_s=step_s, step_tokens=step_tokens)
        return msgspec.structs.replace(stats, **self._parts.totals())

    def _audit_answers(self) -> Iterable[EngineAudit]:
        queries, self._audits = self._audits, []
        return [
            EngineAudit(
                query_id=query_id,
                stats=self._snapshot(),
                live=self._scheduler.live_sequences(),
                violations=tuple(self._scheduler.violations()),
            )
            for query_id in queries
        ]


def _step_out(outputs: Outputs, progress: Iterable[tuple[Rid, Progress]], stats: EngineStats) -> StepOut:
    return StepOut(
        rids=outputs.rids,
        token_ids=outputs.token_ids,
        logprobs=outputs.logprobs,
        starts=[SequenceStart(start.rid, start.prompt_tokens, start.cached_tokens) for start in outputs.starts],
        rejections=[GroupRejection(rejection.rids, rejection.refusal) for rejection in outputs.rejections],
        ends=[SequenceEnd(end.rid, end.reason, end.refusal, end.held) for end in outputs.ends],
        progress=tuple(progress),
        stats=stats,
    )
