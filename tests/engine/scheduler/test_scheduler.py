"""Commands, plans, results, and the one function that ends a sequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.scheduler.plan import NO_TOKEN, Plan, StepResult
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.engine.scheduler.sequence import Submission
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Accepted, Progressed, Rejected
from sluiceway.ipc.messages.to_tokenizer import SequenceEnd
from sluiceway.refusals import NO_LOGITS
from sluiceway.types import FinishReason, Flow, Held, Logprobs, Progress, Rid, Speculation, TokenId
from support.scheduling import EOS, SchedulerLoop, answers_alone, engine_config, result_of, sampling, submission

FAULT = Refusal(status=500, code="engine_fault", message="It broke.")


def scheduler_with(
    *rids: int, max_tokens: int = 8, n_prompt: int = 4, kind: type[Scheduler] = Scheduler, **limits: Any
) -> Scheduler:
    """Return a scheduler to which sequences were submitted one by one; their starts are drained."""
    scheduler = kind(engine_config(**limits))
    for rid in rids:
        scheduler.submit([submission(rid, n_prompt, sampling(max_tokens=max_tokens))])
    scheduler.drain()
    return scheduler


def planned(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


def test_new_scheduler_has_no_work() -> None:
    scheduler = scheduler_with()
    assert scheduler.plan() is None
    assert not scheduler.has_work and scheduler.is_empty and not scheduler.drain()
    scheduler.check()


def test_start_is_reported_once_when_a_sequence_is_admitted() -> None:
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 5), submission(2, 6)])
    assert scheduler.drain().starts == [Accepted(1, 5, 0), Accepted(2, 6, 0)]
    assert not scheduler.drain()
    assert scheduler.has_work and not scheduler.is_empty
    assert scheduler.stats().prompt_tokens_total == 11


def test_nothing_is_held_when_a_group_is_refused() -> None:
    """The whole group gets one rejection."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1), submission(2, n_prompt=0)])
    (rejection,) = scheduler.drain().rejections
    assert isinstance(rejection, Rejected) and rejection.rids == (1, 2) and rejection.refusal.status == 400
    assert scheduler.is_empty and scheduler.stats().accepted_total == 0


@pytest.mark.parametrize("max_waiting", [0, 1, 3])
def test_max_waiting_counts_sequences_beyond_the_free_slots(max_waiting: int) -> None:
    """There are two slots, so two more sequences than `max_waiting` are accepted."""
    scheduler = Scheduler(engine_config(max_running=2, max_waiting=max_waiting))
    for rid in range(10):
        scheduler.submit([submission(rid)])
    outputs = scheduler.drain()
    assert [start.rid for start in outputs.starts] == list(range(2 + max_waiting))
    assert {rejection.refusal.code for rejection in outputs.rejections} == {"overloaded"}
    scheduler.plan()
    scheduler.submit([submission(20)])
    assert len(scheduler.drain().rejections) == 1, "sequences that got a slot left the queue, and no slot is free"


def test_answer_is_generated_token_by_token() -> None:
    """The first token comes with the prompt, and the end with the last token."""
    scheduler = scheduler_with(1, max_tokens=3)
    for step_id in (1, 2, 3):
        plan = planned(scheduler)
        assert plan.step_id == step_id and plan.n_tokens == (4 if step_id == 1 else 1)
        scheduler.commit(plan, StepResult(step_id, [step_id * 10]))
        scheduler.check()
    outputs = scheduler.drain()
    assert (outputs.rids, outputs.token_ids) == ([1, 1, 1], [10, 20, 30])
    assert outputs.ends == [SequenceEnd(1, FinishReason.LENGTH, None, Held("running", 2))]
    assert scheduler.plan() is None and scheduler.is_empty


def test_an_end_is_urgent_until_it_is_drained() -> None:
    scheduler = scheduler_with(1, 2)
    seen = [scheduler.has_urgent_messages]
    scheduler.finish(1, FinishReason.CANCELLED)
    seen.append(scheduler.has_urgent_messages)
    scheduler.drain()
    assert [*seen, scheduler.has_urgent_messages] == [False, True, False]


def test_a_refusal_is_urgent() -> None:
    """It does not wait for a step of other sequences."""
    scheduler = scheduler_with(1, max_running=1, max_waiting=0)
    scheduler.submit([submission(2)])
    assert scheduler.has_urgent_messages


@pytest.mark.parametrize(
    ("lengths", "expected"), [((256,), False), ((257,), True), ((128, 128), False), ((200, 57), True)]
)
def test_a_start_is_urgent_when_its_prompt_makes_a_long_step(lengths: tuple[int, ...], expected: bool) -> None:
    """The start of a short prompt is reported with its first token."""
    scheduler = Scheduler(engine_config(n_blocks=1024, max_model_len=512))
    for rid, length in enumerate(lengths):
        scheduler.submit([submission(rid, length)])
    is_urgent = scheduler.has_urgent_messages
    assert (len(scheduler.drain().starts), is_urgent) == (len(lengths), expected)


def test_end_token_is_published_when_the_model_stops() -> None:
    """The end token counts as generated."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan, EOS))
    outputs = scheduler.drain()
    assert outputs.token_ids == [EOS] and outputs.ends == [SequenceEnd(1, FinishReason.STOP, None, Held("running", 1))]
    assert scheduler.stats().generated_tokens_total == 1


def test_chunk_before_the_end_of_the_prompt_gives_no_token() -> None:
    """A prompt of 40 tokens takes steps of 16; the third step samples."""
    scheduler = scheduler_with(1, n_prompt=40)
    for n_tokens, n_sampled in ((16, 0), (16, 0), (8, 1)):
        plan = planned(scheduler)
        assert plan.n_tokens == n_tokens
        scheduler.commit(plan, result_of(plan))
        assert len(scheduler.drain().token_ids) == n_sampled


def test_only_the_first_end_counts() -> None:
    """The second call returns False, and one end is reported."""
    scheduler = scheduler_with(1)
    assert scheduler.finish(1, FinishReason.CANCELLED)
    assert not scheduler.finish(1, FinishReason.DEADLINE, FAULT)
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.CANCELLED, None, Held("waiting", 0))]
    assert scheduler.stats().finished_total == 1


def test_commands_do_nothing_when_the_id_is_unknown_or_finished() -> None:
    scheduler = scheduler_with(1)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.drain()
    for rid in (1, 2, -5):
        scheduler.set_flow(rid, Flow.PAUSE)
        scheduler.set_flow(rid, Flow.RUN)
        scheduler.set_flow(rid, Flow.PARK)
        assert not scheduler.finish(rid, FinishReason.CANCELLED)
    assert not scheduler.drain()
    scheduler.check()


def test_end_carries_the_refusal_that_caused_it() -> None:
    scheduler = scheduler_with(1)
    scheduler.finish(1, FinishReason.ERROR, FAULT)
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.ERROR, FAULT, Held("waiting", 0))]


def test_aborted_sequence_in_the_queue_never_runs() -> None:
    """There is one slot. The second sequence is aborted, so the third one runs next."""
    scheduler = scheduler_with(1, 2, 3, max_tokens=1, max_running=1)
    plan = planned(scheduler)
    scheduler.finish(2, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert [row.rid for row in planned(scheduler).rows] == [3]


def test_token_is_wasted_when_its_sequence_finished_in_flight() -> None:
    """Its blocks return to the pool when the step has ended."""
    scheduler = scheduler_with(1, 2)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.check()
    assert scheduler.stats().blocks_fenced == 1
    scheduler.commit(plan, result_of(plan))
    scheduler.check()
    outputs, stats = scheduler.drain(), scheduler.stats()
    assert outputs.rids == [2] and [end.rid for end in outputs.ends] == [1]
    assert (stats.wasted_tokens_total, stats.generated_tokens_total, stats.blocks_fenced) == (1, 1, 0)


def test_nothing_is_wasted_when_a_chunk_without_a_token_is_dropped() -> None:
    """Wasted tokens are counted, not wasted rows."""
    scheduler = scheduler_with(1, n_prompt=40)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert scheduler.stats().wasted_tokens_total == 0


def test_token_is_kept_when_its_sequence_was_paused_in_flight() -> None:
    """A paused sequence keeps its blocks, so the result is valid. It is left out of the next plan."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    scheduler.set_flow(1, Flow.PAUSE)
    scheduler.commit(plan, result_of(plan))
    scheduler.check()
    assert scheduler.drain().rids == [1]
    assert scheduler.plan() is None
    assert (scheduler.has_work, scheduler.stats().paused) == (False, 1)
    scheduler.set_flow(1, Flow.RUN)
    assert (scheduler.has_work, scheduler.stats().paused) == (True, 0)
    assert planned(scheduler).n_tokens == 1


def test_paused_sequence_finishes_when_its_last_token_arrives() -> None:
    scheduler = scheduler_with(1, max_tokens=1)
    plan = planned(scheduler)
    scheduler.set_flow(1, Flow.PAUSE)
    scheduler.commit(plan, result_of(plan))
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.LENGTH, None, Held("paused", 1))]
    scheduler.check()


def test_all_known_tokens_are_computed_again_after_parking() -> None:
    """The tokens of the prompt, and those generated before."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan))
    scheduler.set_flow(1, Flow.PARK)
    assert scheduler.stats().blocks_free == 64 and scheduler.plan() is None
    scheduler.set_flow(1, Flow.RUN)
    (row,) = planned(scheduler).rows
    assert (row.start, row.n_tokens, row.samples) == (0, 5, True)


def test_result_is_dropped_when_its_sequence_was_planned_again_since() -> None:
    """The sequence is parked and resumed while step 1 is in flight, so only the result of step 2 counts."""
    scheduler = scheduler_with(1)
    first = planned(scheduler)
    scheduler.set_flow(1, Flow.PARK)
    scheduler.set_flow(1, Flow.RUN)
    second = planned(scheduler)
    scheduler.check()
    scheduler.commit(first, result_of(first))
    assert scheduler.drain().rids == [] and scheduler.stats().wasted_tokens_total == 1
    scheduler.commit(second, result_of(second))
    assert scheduler.drain().rids == [1]
    scheduler.check()


def test_runner_learns_once_of_the_end_of_a_sequence_that_it_computed() -> None:
    """The runner never learns of sequence 3, which was never planned."""
    scheduler = scheduler_with(1, 2, 3, max_running=2)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.finish(3, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert planned(scheduler).retired == (1,)
    scheduler.finish(2, FinishReason.CANCELLED)
    assert scheduler.plan() is None, "the end is reported with the next plan"
    scheduler.submit([submission(4)])
    assert planned(scheduler).retired == (2,)


def test_every_sequence_of_an_abandoned_plan_ends() -> None:
    """Other sequences go on, and the blocks are free again."""
    scheduler = scheduler_with(1, 2, 3, max_running=2)
    plan = planned(scheduler)
    scheduler.abandon(plan, FAULT)
    scheduler.check()
    assert scheduler.drain().ends == [SequenceEnd(rid, FinishReason.ERROR, FAULT, Held("running", 1)) for rid in (1, 2)]
    assert scheduler.stats().blocks_free == 64
    assert [row.rid for row in planned(scheduler).rows] == [3]


def test_commit_raises_when_the_plan_is_not_the_oldest() -> None:
    """Results are committed in the order of the plans, each once."""
    scheduler = scheduler_with(1, 2, max_step_tokens=4)
    first, second = planned(scheduler), planned(scheduler)
    with pytest.raises(InvariantError, match="not the oldest"):
        scheduler.commit(second, result_of(second))
    with pytest.raises(InvariantError, match="not the oldest"):
        scheduler.abandon(second, FAULT)
    scheduler.commit(first, result_of(first))
    scheduler.commit(second, result_of(second))
    with pytest.raises(InvariantError, match="not the oldest"):
        scheduler.commit(second, result_of(second))


@pytest.mark.parametrize("result", [StepResult(2, [1]), StepResult(1, []), StepResult(1, [1, 2])])
def test_commit_raises_when_the_result_does_not_fit(result: StepResult) -> None:
    """The result is of another step, too short or too long. The scheduler does not change."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    before = scheduler.stats()
    with pytest.raises(InvariantError, match="does not fit"):
        scheduler.commit(plan, result)
    assert scheduler.stats() == before
    scheduler.commit(plan, result_of(plan))


def test_check_raises_when_an_invariant_is_broken() -> None:
    """The message is that of the audit."""

    class DoubleScheduler(Scheduler):
        def finish(self, rid: Rid, reason: FinishReason, refusal: Refusal | None = None) -> bool:
            was_live = super().finish(rid, reason, refusal)
            self._outputs.ends *= 2
            return was_live

    scheduler = scheduler_with(1, kind=DoubleScheduler)
    scheduler.finish(1, FinishReason.STOP)
    assert scheduler.violations() == ["I1: a sequence has two ends"]
    with pytest.raises(InvariantError, match="two ends"):
        scheduler.check()


def test_audit_lists_live_sequences() -> None:
    scheduler = scheduler_with(1)
    planned(scheduler)
    (line,) = scheduler.live_sequences()
    assert (line.rid, line.state, line.known_tokens, line.blocks) == (1, "running", 4, 1)


def test_snapshot_has_the_step_figures_that_it_is_given() -> None:
    """The scheduler cannot know them itself."""
    stats = scheduler_with().stats(step_s=0.25, step_tokens=7)
    assert (stats.step_s, stats.step_tokens) == (0.25, 7)


def test_stream_gets_a_token_in_every_step_while_a_long_prompt_is_computed() -> None:
    loop = SchedulerLoop(engine_config(max_step_tokens=4, max_running=2))
    loop.submit(submission(1, 4, sampling(max_tokens=30)))
    loop.step()
    loop.submit(submission(2, 60))
    for n in range(2, 20):
        loop.step()
        assert len(loop.tokens[1]) == n
    assert 2 not in loop.tokens


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    n_blocks=st.integers(12, 16),
    max_step_tokens=st.integers(4, 40),
)
def test_answers_are_the_same_as_alone_when_the_pool_is_too_small(
    prompts: list[int], n_blocks: int, max_step_tokens: int
) -> None:
    """Preemption loses no token and repeats none, and every sequence finishes."""
    submissions = [submission(rid, n, sampling(max_tokens=18)) for rid, n in enumerate(prompts)]
    loop = SchedulerLoop(engine_config(n_blocks=n_blocks, max_step_tokens=max_step_tokens))
    loop.submit(*submissions)
    loop.run()
    assert loop.tokens == answers_alone(engine_config(), submissions)
    assert loop.scheduler.stats().blocks_free == n_blocks


def test_chunks_become_smaller_when_steps_take_too_long() -> None:
    """The duration of a step decides how large a chunk the next one gets while a stream runs."""
    scheduler = Scheduler(engine_config(n_blocks=256, max_model_len=1024, max_step_tokens=512, max_running=2))
    scheduler.submit([submission(1, 100), submission(2, 800)])
    first = scheduler.plan()
    assert first is not None and first.n_tokens == 128
    scheduler.observe(first, 0.1)
    scheduler.commit(first, StepResult(first.step_id, [7]))
    second = scheduler.plan()
    assert second is not None and second.n_tokens == 1 + 96


def test_sequences_are_preempted_when_the_pool_is_too_small() -> None:
    """Without preemption, the test of the answers above would prove nothing."""
    loop = SchedulerLoop(engine_config(n_blocks=12))
    submissions = [submission(rid, 8, sampling(max_tokens=30)) for rid in range(4)]
    loop.submit(*submissions)
    loop.run()
    assert loop.scheduler.stats().preempted_total >= 2
    assert loop.tokens == answers_alone(engine_config(), submissions)


def test_tables_are_empty_after_ten_thousand_short_requests() -> None:
    loop = SchedulerLoop(engine_config(max_running=16, max_step_tokens=64), checks=False)
    scheduler = loop.scheduler
    for first in range(0, 10_000, 100):
        for rid in range(first, first + 100):
            loop.submit(submission(rid, 1 + rid % 9, sampling(max_tokens=1 + rid % 3)))
            if rid % 7 == 0:
                scheduler.finish(rid, FinishReason.CANCELLED)
        loop.run()
    scheduler.check()
    stats = scheduler.stats()
    assert scheduler.is_empty and not scheduler.has_work and stats.blocks_free == stats.blocks_total
    assert stats.accepted_total == stats.finished_total == stats.released_total == 10_000
    assert len(loop.ends) == 10_000 and len({end.rid for end in loop.ends}) == 10_000
    assert len(loop.runner.sequences) <= 16, "the runner has forgotten all but the last sequences"


def test_a_hundred_thousand_waiting_sequences_can_be_cancelled() -> None:
    """They leave from the end of the queue. A linear search for each would exceed the time limit of the tests."""
    n = 100_000
    scheduler = Scheduler(engine_config(max_waiting=n))
    for rid in range(n):
        scheduler.submit([submission(rid, 1)])
    for rid in range(n - 1, -1, -1):
        assert scheduler.finish(rid, FinishReason.CANCELLED)
    assert scheduler.is_empty and scheduler.stats().released_total == n


# Speculation.


def repeating_scheduler(
    max_tokens: int = 100,
    speculation: Speculation = "ngram",
    *,
    own: Speculation | None = None,
    stop_token_ids: tuple[TokenId, ...] = (),
    table: SequenceTable | None = None,
    **limits: Any,
) -> Scheduler:
    """Return a scheduler of one sequence: its prompt is 9, 9, 9, 9, its first token 9, and its speculation `own`."""
    scheduler = Scheduler(engine_config(speculation=speculation, **limits), table)
    params = sampling(max_tokens=max_tokens, speculation=own, stop_token_ids=stop_token_ids)
    scheduler.submit([Submission(1, [9] * 4, params, 0)])
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan, 9))
    scheduler.drain()
    return scheduler


def committed(scheduler: Scheduler, *token_ids: TokenId) -> list[TokenId]:
    """Run a step that samples these tokens, and return the tokens that the scheduler publishes."""
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, token_ids))
    scheduler.check()
    return scheduler.drain().token_ids


def test_one_step_gives_several_tokens_when_drafts_are_accepted() -> None:
    """Four drafts are accepted, and one more token is sampled after them."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 9, 9, 9, 8) == [9, 9, 9, 9, 8]
    (row,) = planned(scheduler).rows
    assert (row.start, row.known[row.start :]) == (9, [8])
    stats = scheduler.stats()
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 4)
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (6, 0)


def test_tokens_after_the_first_wrong_draft_are_dropped() -> None:
    """The token in place of the wrong draft is valid. Those after it are not, even if they agree with the drafts."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 7, 9, 9, 9) == [9, 7]
    (row,) = planned(scheduler).rows
    assert (row.start, row.known[row.start :]) == (6, [7])
    stats = scheduler.stats()
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 1)
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (3, 0)


@pytest.mark.parametrize(("speculation", "own"), [("off", None), ("off", "off"), ("ngram", "off")])
def test_no_row_has_drafts_when_speculation_is_off(speculation: Speculation, own: Speculation | None) -> None:
    """The setting of a sequence takes precedence over that of the engine."""
    (row,) = planned(repeating_scheduler(speculation=speculation, own=own)).rows
    assert row.n_samples == 1


@pytest.mark.parametrize(("speculation", "own"), [("ngram", None), ("ngram", "ngram"), ("off", "ngram")])
def test_rows_have_drafts_when_speculation_is_on(speculation: Speculation, own: Speculation | None) -> None:
    (row,) = planned(repeating_scheduler(speculation=speculation, own=own)).rows
    assert row.n_samples == 5


def test_sequence_ends_with_an_end_token_after_drafts() -> None:
    """What was sampled after the end token does not count."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 9, EOS, 9, 9) == [9, 9, EOS]
    assert scheduler.is_empty and scheduler.stats().wasted_tokens_total == 0


@pytest.mark.parametrize(("field", "value"), [("max_length", 7), ("end_ids", frozenset({9}))])
def test_tokens_beyond_the_end_are_wasted_when_drafts_go_beyond_it(field: str, value: object) -> None:
    """Our own drafts never go beyond the end. If they did, the counts would still add up."""
    table = SequenceTable(engine_config(speculation="ngram"))
    scheduler = repeating_scheduler(table=table)
    plan = planned(scheduler)
    setattr(table.live[1], field, value)
    scheduler.commit(plan, result_of(plan, 9))
    scheduler.check()
    outputs, stats = scheduler.drain(), scheduler.stats()
    n = len(outputs.token_ids)
    assert outputs.token_ids == [9] * n and n in (1, 2) and len(outputs.ends) == 1
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (1 + n, 5 - n)


def test_sequence_ends_exactly_at_its_length_when_drafts_are_accepted() -> None:
    scheduler = repeating_scheduler(max_tokens=4)
    assert committed(scheduler, 9, 9, 9) == [9, 9, 9]
    assert scheduler.is_empty


def test_valid_tokens_are_wasted_when_their_sequence_finished_in_flight() -> None:
    """Two tokens were valid. Rejected drafts count neither as generated nor as wasted."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, StepResult(plan.step_id, [9, 7, 9, 9, 9]))
    stats = scheduler.stats()
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (1, 2)
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 1)


def test_commit_raises_when_a_draft_has_no_sample() -> None:
    """A step samples one token for each draft, and one more."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    for n_tokens in (1, 4, 6):
        with pytest.raises(InvariantError, match="does not fit"):
            scheduler.commit(plan, StepResult(plan.step_id, [9] * n_tokens))


def test_a_step_with_drafts_alone_does_not_change_the_chunk_budget() -> None:
    """The chunk budget follows steps that compute prompts."""
    scheduler = repeating_scheduler(max_step_tokens=512, n_blocks=256, max_model_len=1000)
    plan = planned(scheduler)
    assert plan.n_tokens == 5
    scheduler.observe(plan, 0.001)
    scheduler.commit(plan, result_of(plan, 9))
    scheduler.submit([submission(2, 800)])
    assert planned(scheduler).n_tokens == 1 + 128, "the chunk has the same size as before"


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    period=st.integers(1, 9),
    n_blocks=st.integers(12, 24),
    max_step_tokens=st.integers(4, 40),
)
def test_answers_are_the_same_with_and_without_drafts(
    prompts: list[int], period: int, n_blocks: int, max_step_tokens: int
) -> None:
    """The text repeats itself, and the pool may be too small."""
    submissions = [submission(rid, n, sampling(max_tokens=18)) for rid, n in enumerate(prompts)]
    config = engine_config(n_blocks=n_blocks, max_step_tokens=max_step_tokens, speculation="ngram")
    loop = SchedulerLoop(config, period=period)
    loop.submit(*submissions)
    loop.run()
    assert loop.tokens == answers_alone(engine_config(), submissions, period=period)
    assert loop.scheduler.stats().blocks_free == n_blocks


def test_text_that_repeats_itself_takes_fewer_steps() -> None:
    """Each step gives five tokens once the period has been seen."""
    n_steps = {}
    for speculation in ("off", "ngram"):
        loop = SchedulerLoop(engine_config(speculation=speculation), period=6)
        loop.submit(submission(1, 4, sampling(max_tokens=60)))
        n_steps[speculation] = loop.run()
    assert n_steps["off"] == 60 and n_steps["ngram"] <= 8 + 52 // 5 + 1


def test_text_that_does_not_repeat_itself_costs_few_drafts() -> None:
    """Pairs of letters come again in this text, but different letters follow them."""
    loop = SchedulerLoop(engine_config(speculation="ngram"))
    loop.submit(submission(1, 4, sampling(max_tokens=200)))
    loop.run()
    stats = loop.scheduler.stats()
    assert 0 < stats.draft_tokens_total < 80


# Logprobs.


def logprobs_of(*token_ids: TokenId) -> list[Logprobs]:
    """Return different logprobs for different tokens."""
    return [Logprobs(-float(token_id), (), ()) for token_id in token_ids]


def test_logprobs_go_with_their_tokens() -> None:
    """Their keys are positions among all tokens of the step. A row without logprobs has none."""
    scheduler = scheduler_with(1, 2, 3)
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, [5, 6, 7], [None, *logprobs_of(6, 7)]))
    outputs = scheduler.drain()
    assert outputs.token_ids == [5, 6, 7]
    assert outputs.logprobs == dict(enumerate(logprobs_of(6, 7), 1))


def test_logprobs_of_accepted_drafts_go_with_their_tokens() -> None:
    """Those of rejected drafts are dropped."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    sampled = [9, 9, 7, 9, 9]
    scheduler.commit(plan, StepResult(plan.step_id, sampled, logprobs_of(1, 2, 3, 4, 5)))
    outputs = scheduler.drain()
    assert outputs.token_ids == [9, 9, 7]
    assert outputs.logprobs == dict(enumerate(logprobs_of(1, 2, 3)))


def test_logprobs_are_dropped_with_the_token_of_a_finished_sequence() -> None:
    scheduler = scheduler_with(1, 2)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, StepResult(plan.step_id, [5, 6], logprobs_of(5, 6)))
    outputs = scheduler.drain()
    assert (outputs.rids, outputs.logprobs) == ([2], dict(enumerate(logprobs_of(6))))


def test_progress_of_watched_groups_reports_their_position() -> None:
    """There is one slot. Each sequence moves up when one before it ends. Progress of sequence 2 is not watched."""
    scheduler = scheduler_with(1, max_running=1, n_prompt=4)
    scheduler.commit(plan := planned(scheduler), result_of(plan))
    for rid in (2, 3, 4):
        scheduler.submit([submission(rid)], is_watched=rid != 2)
    assert scheduler.progress(0.0) == [Progressed(3, Progress(2, 0, 4)), Progressed(4, Progress(3, 0, 4))]
    scheduler.finish(2, FinishReason.CANCELLED)
    assert scheduler.progress(1.0) == [Progressed(3, Progress(1, 0, 4)), Progressed(4, Progress(2, 0, 4))]
    scheduler.finish(1, FinishReason.CANCELLED)
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan))
    assert scheduler.progress(2.0) == [Progressed(3, Progress(0, 4, 4)), Progressed(4, Progress(1, 0, 4))]
    scheduler.finish(4, FinishReason.CANCELLED)
    assert scheduler.progress(3.0) == []


def test_progress_of_a_watched_prompt_advances_by_chunks() -> None:
    """A prompt of 40 tokens takes steps of 16."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 40)], is_watched=True)
    reported: list[Progressed] = []
    for second in range(4):
        plan = planned(scheduler)
        scheduler.commit(plan, result_of(plan))
        reported += scheduler.progress(float(second))
    assert reported == [Progressed(1, Progress(0, n_computed, 40)) for n_computed in (16, 32, 40)]


def test_no_progress_is_reported_after_the_first_token() -> None:
    """A report that waits for the end of its interval is dropped then."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 20)], is_watched=True)
    reported = []
    for now_s in (0.0, 0.01, 1.0):
        plan = planned(scheduler)
        scheduler.commit(plan, result_of(plan))
        reported.append(scheduler.progress(now_s))
    assert reported == [[Progressed(1, Progress(0, 16, 20))], [], []]


def test_nothing_is_watched_when_a_group_is_refused() -> None:
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, n_prompt=0)], is_watched=True)
    assert scheduler.progress(0.0) == []


def test_sequence_ends_with_an_error_when_the_model_gives_no_token() -> None:
    """It gets no token of that step. The other sequence continues, and the end is counted once."""
    scheduler = scheduler_with(1, 2)
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, [NO_TOKEN, 5]))
    scheduler.check()
    outputs, stats = scheduler.drain(), scheduler.stats()
    assert outputs.rids == [2] and outputs.token_ids == [5]
    assert [(end.rid, end.reason, end.refusal) for end in outputs.ends] == [(1, FinishReason.ERROR, NO_LOGITS)]
    assert (stats.no_tokens_total, stats.generated_tokens_total, stats.wasted_tokens_total) == (1, 1, 1)
    assert [row.rid for row in planned(scheduler).rows] == [2]


def test_live_sequences_that_fail_end_without_a_rejection() -> None:
    scheduler = scheduler_with(1, 2)
    scheduler.drain()
    scheduler.fail([1, 2], NO_LOGITS)
    outputs = scheduler.drain()
    assert [end.rid for end in outputs.ends] == [1, 2] and outputs.rejections == []


def test_sequences_that_fail_end_if_live_and_are_rejected_otherwise() -> None:
    """Each gets exactly one terminal message."""
    scheduler = scheduler_with(1)
    scheduler.drain()
    scheduler.fail([1, 7], NO_LOGITS)
    scheduler.check()
    outputs = scheduler.drain()
    assert [(end.rid, end.reason, end.refusal) for end in outputs.ends] == [(1, FinishReason.ERROR, NO_LOGITS)]
    assert [(rejection.rids, rejection.refusal) for rejection in outputs.rejections] == [((7,), NO_LOGITS)]
    assert scheduler.is_empty
