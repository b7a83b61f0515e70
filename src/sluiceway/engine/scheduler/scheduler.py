"""Decides what each step computes, and what follows from its result.

Theory of operation
-------------------
The engine works in rounds: commands (`submit`, `finish`, `set_flow`), then `plan`, then the plan is computed, then
`commit` takes the result. A command may come at any time, also while a plan is in flight, and for any id. For an id
that has finished or never existed it does nothing. Messages collect until `drain`.

Every end of a sequence goes through `finish`, the one way out. The first reason wins.

More than one plan may be in flight, if they are committed in the order in which they were made. A sequence is in at
most one of them. Its result counts only if the sequence still waits for that very step. If it finished or lost its
blocks meanwhile, even if it was planned again since, the token is dropped and counted as wasted. A token depends on the
known tokens and the seed alone, so it will be generated again.

A step costs O(rows log rows), however many sequences wait and whatever happened before.

What this file does not know: tensors, text, clocks, sockets.
"""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field

from sluiceway.config import EngineConfig
from sluiceway.engine.scheduler import audit
from sluiceway.engine.scheduler.admission import refusal_of
from sluiceway.engine.scheduler.chunk_budget import ChunkBudget
from sluiceway.engine.scheduler.counters import Counters
from sluiceway.engine.scheduler.drafts import Drafter, count_accepted
from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, Row, StepResult
from sluiceway.engine.scheduler.planner import BatchPlanner
from sluiceway.engine.scheduler.progress_reporter import ProgressReporter
from sluiceway.engine.scheduler.sequence import Input, Sequence, Submission
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Accepted, Progressed, Rejected
from sluiceway.ipc.messages.to_tokenizer import SequenceEnd
from sluiceway.refusals import NO_LOGITS
from sluiceway.types import (
    EngineStats,
    FinishReason,
    Flow,
    LiveSequence,
    Logprobs,
    Rid,
    SamplingParams,
    StepId,
    TokenId,
)

_LONG_STEP_TOKENS = 256
"""A step with more prompt tokens takes many times longer than a separate message costs."""


_FLOW_INPUTS = {Flow.RUN: Input.RESUME, Flow.PAUSE: Input.PAUSE, Flow.PARK: Input.PARK}


@dataclass(slots=True)
class Outputs:
    """The messages of one round, in this order: starts and rejections, tokens, ends. It is true if there are any.

    `rids[i]` got `token_ids[i]`. `logprobs` has those of token i under i, for sequences that want logprobs.
    """

    starts: list[Accepted] = field(default_factory=list)
    rejections: list[Rejected] = field(default_factory=list)
    rids: list[Rid] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    ends: list[SequenceEnd] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.starts or self.rejections or self.rids or self.ends)


class Scheduler:
    """Plans steps and commits their results. Not safe for threads: one loop owns it."""

    def __init__(self, config: EngineConfig, table: SequenceTable | None = None) -> None:
        """`table` None: a new one. Nothing else may change the table."""
        self._config = config
        self._table = SequenceTable(config) if table is None else table
        self._in_flight: deque[Plan] = deque()
        self._retired: list[Rid] = []
        """Sequences that finished since the last plan and were part of one: a runner knows no others."""
        self._outputs = Outputs()
        self._reporter = ProgressReporter()
        self._counters = Counters()
        self._chunk_budget = ChunkBudget(target_s=config.step_target_s, max_tokens=config.max_step_tokens)

    @property
    def has_work(self) -> bool:
        """True when a step would compute something without further commands."""
        return self._table.n_running > 0 or self._table.next_to_start() is not None

    @property
    def has_urgent_messages(self) -> bool:
        """True when there are messages that must not wait for the next step.

        Such messages are ends, rejections, and acceptances of prompts that make a long step.
        """
        outputs = self._outputs
        n_tokens = sum(start.prompt_tokens for start in outputs.starts)
        return bool(outputs.ends or outputs.rejections) or n_tokens > _LONG_STEP_TOKENS

    @property
    def is_empty(self) -> bool:
        """True when no sequence is live."""
        return not self._table.live

    def submit(self, group: abc.Sequence[Submission], *, is_watched: bool = False) -> None:
        """Accept all sequences of a request, or reject them all. `is_watched`: report its progress."""
        refusal = refusal_of(group, self._config, live=self._table.live, room=self._room())
        if refusal is not None:
            self._outputs.rejections.append(Rejected(tuple(submission.rid for submission in group), refusal))
            return
        sequences = [self._accept(submission) for submission in group]
        if is_watched:
            self._reporter.add(sequences)

    def finish(self, rid: Rid, reason: FinishReason, refusal: Refusal | None = None) -> bool:
        """Finish a sequence: the only way out. Returns False for a sequence that has finished, and for unknown ids."""
        sequence = self._table.live.get(rid)
        if sequence is None:
            return False
        held = self._table.held_by(sequence)
        self._table.move(sequence, Input.FINISH)
        self._counters.finished += 1
        self._outputs.ends.append(SequenceEnd(rid, reason, refusal, held))
        self._reporter.drop(rid)
        if sequence.was_planned:
            self._retired.append(rid)
        return True

    def fail(self, rids: abc.Sequence[Rid], refusal: Refusal) -> None:
        """Finish those of these sequences that are live with an error, and reject the others."""
        unknown = tuple(rid for rid in rids if not self.finish(rid, FinishReason.ERROR, refusal))
        if unknown:
            self._outputs.rejections.append(Rejected(unknown, refusal))

    def set_flow(self, rid: Rid, flow: Flow) -> None:
        """Run, pause or park a sequence. Unknown ids are ignored.

        A paused sequence keeps what it holds, and the result of a step in flight is still taken. A parked sequence
        gives back its slot and its blocks; when it runs again it waits at the front of the queue.
        """
        sequence = self._table.live.get(rid)
        if sequence is not None:
            self._table.move(sequence, _FLOW_INPUTS[flow])

    def plan(self) -> Plan | None:
        """Plan the next step; None if nothing is to be computed. Plans must be committed or abandoned in order."""
        step_id = self._table.launched + 1
        step = BatchPlanner(
            self._table,
            step_id=step_id,
            max_step_tokens=self._config.max_step_tokens,
            chunk_tokens=self._chunk_budget.chunk_tokens,
        )
        step.fill()
        self._counters.preempted += step.n_preempted
        if not step.rows:
            return None
        self._table.launched = step_id
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
        """Note how long the plan took: the chunks of later plans depend on it."""
        self._chunk_budget.observe(sum(row.n_tokens for row in plan.rows if row.n_tokens > row.n_samples), step_s)

    def abandon(self, plan: Plan, refusal: Refusal) -> None:
        """Finish every sequence of the oldest plan in flight with an error. The plan failed and writes no more."""
        self._require_oldest(plan)
        for row in plan.rows:
            self.finish(row.rid, FinishReason.ERROR, refusal)
        self._settle(plan)

    def drain(self) -> Outputs:
        """Take the messages since the last call."""
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    def progress(self, now_s: float) -> list[Progressed]:
        """Reports of the progress of watched requests that are due now."""
        return self._reporter.reports(self._table.queue, now_s) if self._reporter else []

    def stats(self, *, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
        """A snapshot, with the figures of the step that it closes."""
        return self._counters.snapshot(self._table, step_s=step_s, step_tokens=step_tokens)

    def live_sequences(self) -> tuple[LiveSequence, ...]:
        """What every live sequence holds, for the audit."""
        return self._table.live_sequences()

    def violations(self) -> list[str]:
        """Every broken invariant, as a sentence."""
        return list(
            audit.violations(
                self._table,
                self._in_flight,
                [end.rid for end in self._outputs.ends],
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
        """How many more sequences may be accepted: free slots, and places in the queue beyond them."""
        return self._config.max_waiting + self._table.n_free_slots - len(self._table.queue)

    def _accept(self, submission: Submission) -> Sequence:
        sequence = Sequence(
            submission,
            arrival=self._counters.accepted,
            max_sequence_tokens=self._config.max_sequence_tokens,
            eos_token_ids=self._config.eos_token_ids,
            drafter=self._drafter(submission.sampling),
        )
        self._table.enter(sequence)
        self._counters.accepted += 1
        self._counters.prompt_tokens += sequence.n_prompt
        self._outputs.starts.append(Accepted(sequence.rid, sequence.n_prompt, cached_tokens=0))
        return sequence

    def _drafter(self, sampling: SamplingParams) -> Drafter | None:
        speculation = sampling.speculation or self._config.speculation
        return Drafter(self._config.max_draft_tokens) if speculation == "ngram" else None

    def _require_oldest(self, plan: Plan) -> None:
        if not self._in_flight or self._in_flight[0] is not plan:
            raise InvariantError(f"step {plan.step_id} is not the oldest in flight")

    def _commit_row(
        self, step_id: StepId, row: Row, sampled: abc.Sequence[TokenId], logprobs: abc.Sequence[Logprobs | None]
    ) -> None:
        n_drafts = n_accepted = 0
        true_ids = sampled
        if row.drafts:
            n_drafts, n_accepted = len(row.drafts), count_accepted(row.drafts, sampled)
            self._counters.draft_tokens += n_drafts
            self._counters.accepted_draft_tokens += n_accepted
            true_ids = sampled[: n_accepted + 1]
        sequence = self._receiver(step_id, row)
        if sequence is None:
            self._counters.wasted_tokens += len(true_ids)
            return
        sequence.n_computed += row.n_tokens - n_drafts + n_accepted
        sequence.in_flight = None
        n_published = self._publish(sequence, true_ids, logprobs)
        self._counters.wasted_tokens += len(true_ids) - n_published
        if n_published == len(true_ids):
            sequence.learn(n_drafts, n_accepted)

    def _receiver(self, step_id: StepId, row: Row) -> Sequence | None:
        """The sequence of a row, if it still waits for this very step."""
        sequence = self._table.live.get(row.rid)
        return sequence if sequence is not None and sequence.in_flight == step_id else None

    def _publish(
        self, sequence: Sequence, token_ids: abc.Sequence[TokenId], logprobs: abc.Sequence[Logprobs | None]
    ) -> int:
        """Publish tokens until the sequence finishes or a `NO_TOKEN` comes. Returns how many were published."""
        outputs = self._outputs
        if token_ids:
            self._reporter.started(sequence.rid)
        for n, token_id in enumerate(token_ids, 1):
            if token_id == NO_TOKEN:
                self._counters.no_tokens += 1
                self.finish(sequence.rid, FinishReason.ERROR, NO_LOGITS)
                return n - 1
            self._counters.generated_tokens += 1
            if logprobs and (of_token := logprobs[n - 1]) is not None:
                outputs.logprobs[len(outputs.rids)] = of_token
            outputs.rids.append(sequence.rid)
            outputs.token_ids.append(token_id)
            reason = sequence.append(token_id)
            if reason is not None:
                self.finish(sequence.rid, reason)
                return n
        return len(token_ids)

    def _settle(self, plan: Plan) -> None:
        self._in_flight.popleft()
        self._table.leases.settle(plan.step_id)
