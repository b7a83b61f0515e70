"""Decides what each step computes, and what becomes of its result.

Theory of operation
-------------------
The engine turns a wheel: wishes (`submit`, `finish`, `pause`, `resume`, `park`), then `plan`, then the plan is
computed, then `commit` takes the result. Wishes may come at any time, also while a plan is in flight, and for any id,
also one that has ended or never was: then nothing happens. What there is to say gathers until `drain`.

Every end of a sequence goes through `finish`, the one door out. The first reason wins; later ones find nobody.

More than one plan may be in flight, as long as they are committed in the order in which they were made. A sequence is
in one of them at most. A result is taken only if its sequence still waits for that very step: if it ended, or lost its
blocks and even if it was planned anew since, the token is dropped and counted as wasted. Since a token depends on the
known tokens and the seed alone, it will be generated again.

Costs of a step are O(rows log rows), whatever waits and whatever went before.

What this file does not know: tensors, text, clocks, messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sluiceway.config import EngineConfig
from sluiceway.engine.scheduler import audit
from sluiceway.engine.scheduler.admission import refusal_of
from sluiceway.engine.scheduler.counters import Counters
from sluiceway.engine.scheduler.drafts import Drafter, count_accepted
from sluiceway.engine.scheduler.outputs import End, Outputs, Rejection, Start
from sluiceway.engine.scheduler.pace import Pace
from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, Row, StepResult
from sluiceway.engine.scheduler.planner import NextStep
from sluiceway.engine.scheduler.progress import Watch
from sluiceway.engine.scheduler.request import Input, Request, Submission
from sluiceway.engine.scheduler.roster import Roster
from sluiceway.errors import InvariantError, Refusal
from sluiceway.refusals import NO_LOGITS
from sluiceway.types import (
    EngineStats,
    FinishReason,
    Flow,
    LiveSequence,
    Logprobs,
    Progress,
    Rid,
    SamplingParams,
    StepId,
    TokenId,
)

_LONG_STEP_TOKENS = 256
"""From about here on a step takes longer than a message of its own costs many times over."""


_FLOW_INPUTS = {Flow.RUN: Input.RESUME, Flow.PAUSE: Input.PAUSE, Flow.PARK: Input.PARK}


class Scheduler:
    """The engine's mind. Not safe for threads: one loop owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._roster = Roster(config)
        self._in_flight: deque[Plan] = deque()
        self._retired: list[Rid] = []
        """Ended since the last plan. Only those that were part of one: a runner knows no others."""
        self._outputs = Outputs()
        self._watch = Watch()
        self._counters = Counters()
        self._pace = Pace(target_s=config.step_target_s, max_tokens=config.max_step_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step would get on without further wishes."""
        return self._roster.n_running > 0 or self._roster.next_to_seat() is not None

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell for which nobody should wait until a step is computed.

        That is who has ended or was refused, and who was accepted if their prompts make a long step.
        """
        outputs = self._outputs
        n_tokens = sum(start.prompt_tokens for start in outputs.starts)
        return bool(outputs.ends or outputs.rejections) or n_tokens > _LONG_STEP_TOKENS

    @property
    def is_empty(self) -> bool:
        """Nothing lives."""
        return not self._roster.live

    def submit(self, group: Sequence[Submission], *, is_watched: bool = False) -> None:
        """Admit all of a group, or refuse it: said as starts, or as one rejection. `progress` tells of watched ones."""
        refusal = refusal_of(group, self._config, live=self._roster.live, room=self._room())
        if refusal is not None:
            self._outputs.rejections.append(Rejection(tuple(submission.rid for submission in group), refusal))
            return
        requests = [self._accept(submission) for submission in group]
        if is_watched:
            self._watch.add(requests)

    def finish(self, rid: Rid, reason: FinishReason, refusal: Refusal | None = None) -> bool:
        """The only way out. True the first time, False ever after and for unknown ids."""
        request = self._roster.live.get(rid)
        if request is None:
            return False
        held = self._roster.held_by(request)
        self._roster.move(request, Input.FINISH)
        self._counters.finished += 1
        self._outputs.ends.append(End(rid, reason, held, refusal))
        self._watch.drop(rid)
        if request.was_planned:
            self._retired.append(rid)
        return True

    def fail(self, rids: Sequence[Rid], refusal: Refusal) -> None:
        """They could not be taken in: those of them that live already end, all others are refused."""
        strangers = tuple(rid for rid in rids if not self.finish(rid, FinishReason.ERROR, refusal))
        if strangers:
            self._outputs.rejections.append(Rejection(strangers, refusal))

    def set_flow(self, rid: Rid, flow: Flow) -> None:
        """Run, pause or park a sequence. Unknown ids are ignored.

        A paused sequence keeps what it holds, and the result of a step in flight is still taken. A parked sequence
        gives back its slot and its blocks; when it runs again it waits at the front of the queue.
        """
        self._wish(rid, _FLOW_INPUTS[flow])

    def plan(self) -> Plan | None:
        """The next step; None if there is nothing to compute. Every plan must be committed or abandoned, in order."""
        step_id = self._roster.launched + 1
        step = NextStep(
            self._roster,
            step_id=step_id,
            max_step_tokens=self._config.max_step_tokens,
            chunk_tokens=self._pace.chunk_tokens,
        )
        step.fill()
        self._counters.preempted += step.n_preempted
        if not step.rows:
            return None
        self._roster.launched = step_id
        plan = Plan(step_id, tuple(step.rows), tuple(self._retired))
        self._retired.clear()
        self._in_flight.append(plan)
        return plan

    def commit(self, plan: Plan, result: StepResult) -> None:
        """Take the result of the oldest plan in flight.

        Raises `InvariantError`, and changes nothing, if it is not the oldest or if the result does not fit it.
        """
        self._require_oldest(plan)
        if result.step_id != plan.step_id or len(result.token_ids) != sum(row.n_samples for row in plan.rows):
            raise InvariantError(f"the result does not fit step {plan.step_id}")
        first = 0
        for row in plan.rows:
            end = first + row.n_samples
            self._commit_row(plan.step_id, row, result.token_ids[first:end], result.logprobs[first:end])
            first = end
        self._settle(plan)

    def observe(self, plan: Plan, step_s: float) -> None:
        """The plan took that long to compute; later plans are cut accordingly."""
        self._pace.observe(sum(row.n_tokens for row in plan.rows if row.n_tokens > row.n_samples), step_s)

    def abandon(self, plan: Plan, refusal: Refusal) -> None:
        """The oldest plan in flight failed and writes no more: end every sequence in it as an error."""
        self._require_oldest(plan)
        for row in plan.rows:
            self.finish(row.rid, FinishReason.ERROR, refusal)
        self._settle(plan)

    def drain(self) -> Outputs:
        """All that there is to say since the last drain."""
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    def progress(self, now_s: float) -> list[tuple[Rid, Progress]]:
        """What there is to tell of watched groups now, by an id of each."""
        return self._watch.news(self._roster.queue, now_s) if self._watch else []

    def stats(self, *, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
        """The snapshot, with the figures of the step that it closes."""
        return self._counters.snapshot(self._roster, step_s=step_s, step_tokens=step_tokens)

    def live_sequences(self) -> tuple[LiveSequence, ...]:
        """Everything that is held, for the audit."""
        return self._roster.live_sequences()

    def violations(self) -> list[str]:
        """Every broken invariant as a sentence."""
        return list(
            audit.violations(
                self._roster,
                self._in_flight,
                self._outputs,
                n_unfinished=self._counters.accepted - self._counters.finished,
                block_tokens=self._config.block_tokens,
            )
        )

    def check(self) -> None:
        """Raises `InvariantError` if an invariant is broken."""
        broken = self.violations()
        if broken:
            raise InvariantError("; ".join(broken))

    def _room(self) -> int:
        """How many sequences may still be taken in: free slots, and places to wait beyond them."""
        return self._config.max_waiting + self._roster.n_free_seats - len(self._roster.queue)

    def _accept(self, submission: Submission) -> Request:
        request = Request(
            submission,
            arrival=self._counters.accepted,
            max_sequence_tokens=self._config.max_sequence_tokens,
            eos_token_ids=self._config.eos_token_ids,
            drafter=self._drafter(submission.sampling),
        )
        self._roster.enter(request)
        self._counters.accepted += 1
        self._counters.prompt_tokens += request.n_prompt
        self._outputs.starts.append(Start(request.rid, request.n_prompt, cached_tokens=0))
        return request

    def _drafter(self, sampling: SamplingParams) -> Drafter | None:
        speculation = sampling.speculation or self._config.speculation
        return Drafter(self._config.max_draft_tokens) if speculation == "ngram" else None

    def _wish(self, rid: Rid, given: Input) -> None:
        request = self._roster.live.get(rid)
        if request is not None:
            self._roster.move(request, given)

    def _require_oldest(self, plan: Plan) -> None:
        if not self._in_flight or self._in_flight[0] is not plan:
            raise InvariantError(f"step {plan.step_id} is not the oldest in flight")

    def _commit_row(
        self, step_id: StepId, row: Row, sampled: Sequence[TokenId], logprobs: Sequence[Logprobs | None]
    ) -> None:
        n_drafts = n_accepted = 0
        true_ids = sampled
        if row.drafts:
            n_drafts, n_accepted = len(row.drafts), count_accepted(row.drafts, sampled)
            self._counters.draft_tokens += n_drafts
            self._counters.accepted_draft_tokens += n_accepted
            true_ids = sampled[: n_accepted + 1]
        request = self._receiver(step_id, row)
        if request is None:
            self._counters.wasted_tokens += len(true_ids)
            return
        request.n_computed += row.n_tokens - n_drafts + n_accepted
        request.in_flight = None
        n_published = self._publish(request, true_ids, logprobs)
        self._counters.wasted_tokens += len(true_ids) - n_published
        if n_published == len(true_ids):
            request.learn(n_drafts, n_accepted)

    def _receiver(self, step_id: StepId, row: Row) -> Request | None:
        """Who takes the result of a row: its sequence, if it still waits for this very step."""
        request = self._roster.live.get(row.rid)
        return request if request is not None and request.in_flight == step_id else None

    def _publish(self, request: Request, token_ids: Sequence[TokenId], logprobs: Sequence[Logprobs | None]) -> int:
        """How many of the tokens the sequence takes: it may end with any of them, and takes no `NO_TOKEN`."""
        if token_ids:
            self._watch.begun(request.rid)
        for n, token_id in enumerate(token_ids, 1):
            if token_id == NO_TOKEN:
                self._counters.no_tokens += 1
                self.finish(request.rid, FinishReason.ERROR, NO_LOGITS)
                return n - 1
            self._counters.generated_tokens += 1
            self._outputs.add_token(request.rid, token_id, logprobs[n - 1] if logprobs else None)
            reason = request.append(token_id)
            if reason is not None:
                self.finish(request.rid, reason)
                return n
        return len(token_ids)

    def _settle(self, plan: Plan) -> None:
        self._in_flight.popleft()
        self._roster.leases.settle(plan.step_id)
