"""One round of the engine: apply commands, plan, compute, commit, and make the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, assert_never

import msgspec

from sluiceway.engine.runner import Runner
from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, StepResult
from sluiceway.engine.scheduler.scheduler import Outputs, Scheduler
from sluiceway.engine.scheduler.sequence import Submission
from sluiceway.engine.step_timer import StepPart, StepTimer
from sluiceway.errors import InvariantError, ModelFault, Refusal
from sluiceway.ipc.messages.to_api import Progressed
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, NewSequence, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import (
    EngineAudit,
    FromEngine,
    StepOut,
)
from sluiceway.types import EngineStats, FinishReason, Rid

T = TypeVar("T")

Receive = Callable[[], Iterable[ToEngine]]
"""Returns what arrived since the last call, without waiting."""

ENGINE_FAULT = Refusal(status=500, code="engine_fault", message="The engine failed while it computed this request.")
"""What a client learns about a fault; the details go to `on_fault`."""

_SEED_MASK = (1 << 64) - 1


class Engine:
    """Joins the scheduler and a runner. Not safe for threads: one loop owns it and calls `step`.

    `draw_seed` returns 64 random bits for each sequence without a seed. `on_fault` gets every exception of the runner,
    every broken invariant, and every step in which the model gave no usable logit. The engine goes on after each of
    them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        draw_seed: Callable[[], int],
        now_s: Callable[[], float],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._draw_seed = draw_seed
        self._timer = StepTimer(now_s)
        self._on_fault = on_fault
        self._audits: list[int] = []
        self._published = self._scheduler.stats()
        """The snapshot that was published last, without the figures of its step."""
        self._is_checked = True
        """True when no sequence was live since the last check of the invariants."""

    @property
    def has_work(self) -> bool:
        """True when `step` is to be called again immediately. Else the caller may sleep until a message comes."""
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """A snapshot of now."""
        return self._snapshot()

    def live_rids(self) -> list[Rid]:
        """Every sequence that was accepted and has not finished."""
        return [sequence.rid for sequence in self._scheduler.live_sequences()]

    def step(self, receive: Receive) -> list[FromEngine]:
        """Do one round: apply what arrived, plan, compute, commit. Returns the messages in order, perhaps none.

        If what arrived makes messages that must not wait for a step, the round ends with them, and `has_work` asks for
        the next round. `receive` is called before planning, and again when the step is computed: a client that has left
        by then gets no result. Commands are applied here only, and never raise.
        """
        self._timer.enter(StepPart.PLAN)
        self._apply(receive())
        # Releases and acceptances of long prompts must not wait for a step.
        plan = None if self._scheduler.has_urgent_messages else self._plan()
        if plan is None:
            self._check_if_idle()
            return self._messages(self._timer.enter(StepPart.PUBLISH), 0.0, 0)
        self._is_checked = False
        started_s = self._timer.enter(StepPart.MODEL)
        self._compute(plan, receive)
        now_s = self._timer.enter(StepPart.PUBLISH)
        self._scheduler.observe(plan, now_s - started_s)
        return self._messages(now_s, now_s - started_s, plan.n_tokens)

    def _messages(self, now_s: float, step_s: float, step_tokens: int) -> list[FromEngine]:
        said: list[FromEngine] = [*self._step_out(now_s, step_s, step_tokens), *self._audit_answers()]
        if not self.has_work:
            self._timer.enter(None)
        return said

    def _plan(self) -> Plan | None:
        """Plan the next step. A fault in planning has no sequence of its own, so all live sequences finish."""
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
        """Finish the sequences of a message that could not be applied with an error, and no others."""
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

    def _submission(self, sequence: NewSequence) -> Submission:
        seed = sequence.sampling.seed
        seed = self._draw_seed() if seed is None else seed
        return Submission(sequence.rid, sequence.prompt_token_ids, sequence.sampling, seed & _SEED_MASK)

    def _compute(self, plan: Plan, receive: Receive) -> None:
        """Compute a plan. If the runner fails, every sequence of the plan finishes with an error, and no other."""
        step = self._attempt(lambda: self._runner.launch(plan))
        result = None if step is None else self._attempt(step.wait)
        self._timer.enter(StepPart.COMMIT)
        # As late as possible: a sequence whose client has left by now finishes with this step, not after it.
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
        """Check the invariants each time the engine becomes idle."""
        if self._is_checked or not self._scheduler.is_empty:
            return
        self._is_checked = True
        for sentence in self._scheduler.violations():
            self._on_fault(InvariantError(sentence))

    def _step_out(self, now_s: float, step_s: float, step_tokens: int) -> Iterable[StepOut]:
        outputs, snapshot = self._scheduler.drain(), self._scheduler.stats()
        progress = self._scheduler.progress(now_s)
        if not outputs and not progress and snapshot == self._published:
            return []
        self._published = snapshot
        return [_step_out(outputs, progress, self._snapshot(step_s=step_s, step_tokens=step_tokens))]

    def _snapshot(self, *, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
        stats = self._scheduler.stats(step_s=step_s, step_tokens=step_tokens)
        return msgspec.structs.replace(stats, **self._timer.totals())

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


def _step_out(outputs: Outputs, progress: list[Progressed], stats: EngineStats) -> StepOut:
    return StepOut(
        rids=outputs.rids,
        token_ids=outputs.token_ids,
        logprobs=outputs.logprobs,
        starts=outputs.starts,
        rejections=outputs.rejections,
        ends=outputs.ends,
        progress=progress,
        stats=stats,
    )
