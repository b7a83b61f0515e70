"""The wheel: wishes, plans, results, and the one door out."""

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
from support.scheduling import EOS, Wheel, answers_alone, engine_config, result_of, sampling, submission

FAULT = Refusal(status=500, code="engine_fault", message="It broke.")


def scheduler_with(
    *rids: int, max_tokens: int = 8, n_prompt: int = 4, kind: type[Scheduler] = Scheduler, **limits: Any
) -> Scheduler:
    """Sequences that were submitted one by one, their starts drained."""
    scheduler = kind(engine_config(**limits))
    for rid in rids:
        scheduler.submit([submission(rid, n_prompt, sampling(max_tokens=max_tokens))])
    scheduler.drain()
    return scheduler


def planned(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


def test_there_is_nothing_to_do_when_it_is_new() -> None:
    """No plan, no work, nothing to say."""
    scheduler = scheduler_with()
    assert scheduler.plan() is None
    assert not scheduler.has_work and scheduler.is_empty and not scheduler.drain()
    scheduler.check()


def test_start_is_said_when_a_sequence_is_admitted() -> None:
    """Once."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 5), submission(2, 6)])
    assert scheduler.drain().starts == [Accepted(1, 5, 0), Accepted(2, 6, 0)]
    assert not scheduler.drain()
    assert scheduler.has_work and not scheduler.is_empty
    assert scheduler.stats().prompt_tokens_total == 11


def test_nothing_is_held_when_a_group_is_refused() -> None:
    """One rejection for all of it."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1), submission(2, n_prompt=0)])
    (rejection,) = scheduler.drain().rejections
    assert isinstance(rejection, Rejected) and rejection.rids == (1, 2) and rejection.refusal.status == 400
    assert scheduler.is_empty and scheduler.stats().accepted_total == 0


@pytest.mark.parametrize("max_waiting", [0, 1, 3])
def test_places_are_counted_beyond_the_free_slots(max_waiting: int) -> None:
    """Two slots: so many may wait, and two more that can start at once."""
    scheduler = Scheduler(engine_config(max_running=2, max_waiting=max_waiting))
    for rid in range(10):
        scheduler.submit([submission(rid)])
    outputs = scheduler.drain()
    assert [start.rid for start in outputs.starts] == list(range(2 + max_waiting))
    assert {rejection.refusal.code for rejection in outputs.rejections} == {"overloaded"}
    scheduler.plan()
    scheduler.submit([submission(20)])
    assert len(scheduler.drain().rejections) == 1, "those that were seated left the queue and took the slots"


def test_answer_is_generated_token_by_token() -> None:
    """The first comes with the prompt; the end after the last."""
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


def test_an_end_is_news_until_it_is_drained() -> None:
    """Whatever caused it."""
    scheduler = scheduler_with(1, 2)
    seen = [scheduler.has_urgent_messages]
    scheduler.finish(1, FinishReason.CANCELLED)
    seen.append(scheduler.has_urgent_messages)
    scheduler.drain()
    assert [*seen, scheduler.has_urgent_messages] == [False, True, False]


def test_a_refusal_is_news() -> None:
    """It does not wait for a step of other sequences."""
    scheduler = scheduler_with(1, max_running=1, max_waiting=0)
    scheduler.submit([submission(2)])
    assert scheduler.has_urgent_messages


@pytest.mark.parametrize(
    ("lengths", "expected"), [((256,), False), ((257,), True), ((128, 128), False), ((200, 57), True)]
)
def test_a_start_is_news_where_its_prompt_makes_a_long_step(lengths: tuple[int, ...], expected: bool) -> None:
    """A short one is told with its first token."""
    scheduler = Scheduler(engine_config(n_blocks=1024, max_model_len=512))
    for rid, length in enumerate(lengths):
        scheduler.submit([submission(rid, length)])
    is_news = scheduler.has_urgent_messages
    assert (len(scheduler.drain().starts), is_news) == (len(lengths), expected)


def test_end_token_is_published_when_the_model_stops() -> None:
    """It counts as generated."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan, EOS))
    outputs = scheduler.drain()
    assert outputs.token_ids == [EOS] and outputs.ends == [SequenceEnd(1, FinishReason.STOP, None, Held("running", 1))]
    assert scheduler.stats().generated_tokens_total == 1


def test_no_token_is_said_when_a_chunk_does_not_reach_the_end_of_the_prompt() -> None:
    """40 tokens in steps of 16: the third samples."""
    scheduler = scheduler_with(1, n_prompt=40)
    for n_tokens, n_sampled in ((16, 0), (16, 0), (8, 1)):
        plan = planned(scheduler)
        assert plan.n_tokens == n_tokens
        scheduler.commit(plan, result_of(plan))
        assert len(scheduler.drain().token_ids) == n_sampled


def test_first_end_wins_when_there_are_two() -> None:
    """True once; one terminal."""
    scheduler = scheduler_with(1)
    assert scheduler.finish(1, FinishReason.CANCELLED)
    assert not scheduler.finish(1, FinishReason.DEADLINE, FAULT)
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.CANCELLED, None, Held("waiting", 0))]
    assert scheduler.stats().finished_total == 1


def test_wishes_do_nothing_when_the_id_is_unknown_or_has_ended() -> None:
    """Any id, at any time."""
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


def test_refusal_is_said_with_the_end_when_there_is_one() -> None:
    """Why a stream broke."""
    scheduler = scheduler_with(1)
    scheduler.finish(1, FinishReason.ERROR, FAULT)
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.ERROR, FAULT, Held("waiting", 0))]


def test_waiting_one_never_runs_when_it_is_aborted() -> None:
    """One slot; the second leaves; the third is next."""
    scheduler = scheduler_with(1, 2, 3, max_tokens=1, max_running=1)
    plan = planned(scheduler)
    scheduler.finish(2, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert [row.rid for row in planned(scheduler).rows] == [3]


def test_token_is_wasted_when_its_sequence_left_in_flight() -> None:
    """Its blocks come back when the step has settled."""
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
    """Tokens are counted, not rows."""
    scheduler = scheduler_with(1, n_prompt=40)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert scheduler.stats().wasted_tokens_total == 0


def test_token_is_taken_when_its_sequence_was_paused_in_flight() -> None:
    """It keeps its blocks, so the result is good; then it sits out."""
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


def test_sequence_may_end_when_it_is_paused() -> None:
    """The result that came in its pause was the last."""
    scheduler = scheduler_with(1, max_tokens=1)
    plan = planned(scheduler)
    scheduler.set_flow(1, Flow.PAUSE)
    scheduler.commit(plan, result_of(plan))
    assert scheduler.drain().ends == [SequenceEnd(1, FinishReason.LENGTH, None, Held("paused", 1))]
    scheduler.check()


def test_all_known_tokens_are_computed_again_when_a_parked_one_returns() -> None:
    """Prompt and answer so far."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan))
    scheduler.set_flow(1, Flow.PARK)
    assert scheduler.stats().blocks_free == 64 and scheduler.plan() is None
    scheduler.set_flow(1, Flow.RUN)
    (row,) = planned(scheduler).rows
    assert (row.start, row.n_tokens, row.samples) == (0, 5, True)


def test_result_is_dropped_when_its_sequence_was_planned_anew_meanwhile() -> None:
    """Parked and resumed while step 1 is in flight: only step 2 counts for it."""
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


def test_runner_is_told_once_when_a_sequence_that_it_knows_has_ended() -> None:
    """The one that was never planned is not its business."""
    scheduler = scheduler_with(1, 2, 3, max_running=2)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.finish(3, FinishReason.CANCELLED)
    scheduler.commit(plan, result_of(plan))
    assert planned(scheduler).retired == (1,)
    scheduler.finish(2, FinishReason.CANCELLED)
    assert scheduler.plan() is None, "word of the end waits for the next plan"
    scheduler.submit([submission(4)])
    assert planned(scheduler).retired == (2,)


def test_every_sequence_of_a_plan_ends_when_it_is_abandoned() -> None:
    """And nobody else; the blocks are back."""
    scheduler = scheduler_with(1, 2, 3, max_running=2)
    plan = planned(scheduler)
    scheduler.abandon(plan, FAULT)
    scheduler.check()
    assert scheduler.drain().ends == [SequenceEnd(rid, FinishReason.ERROR, FAULT, Held("running", 1)) for rid in (1, 2)]
    assert scheduler.stats().blocks_free == 64
    assert [row.rid for row in planned(scheduler).rows] == [3]


def test_commit_raises_when_the_plan_is_not_the_oldest() -> None:
    """Results are taken in the order of the plans, each once."""
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
    """Another step's, too short, too long; nothing has changed."""
    scheduler = scheduler_with(1)
    plan = planned(scheduler)
    before = scheduler.stats()
    with pytest.raises(InvariantError, match="does not fit"):
        scheduler.commit(plan, result)
    assert scheduler.stats() == before
    scheduler.commit(plan, result_of(plan))


def test_check_raises_when_an_invariant_is_broken() -> None:
    """With the sentence of the audit."""

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


def test_audit_names_what_is_live() -> None:
    """Rid, state, tokens, blocks."""
    scheduler = scheduler_with(1)
    planned(scheduler)
    (line,) = scheduler.live_sequences()
    assert (line.rid, line.state, line.known_tokens, line.blocks) == (1, "running", 4, 1)


def test_snapshot_has_the_figures_of_its_step_when_they_are_given() -> None:
    """They are not the scheduler's to know."""
    stats = scheduler_with().stats(step_s=0.25, step_tokens=7)
    assert (stats.step_s, stats.step_tokens) == (0.25, 7)


def test_stream_gets_a_token_in_every_step_while_a_long_prompt_is_computed() -> None:
    """A newcomer does not stall it."""
    wheel = Wheel(engine_config(max_step_tokens=4, max_running=2))
    wheel.submit(submission(1, 4, sampling(max_tokens=30)))
    wheel.turn()
    wheel.submit(submission(2, 60))
    for n in range(2, 20):
        wheel.turn()
        assert len(wheel.tokens[1]) == n
    assert 2 not in wheel.tokens


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    n_blocks=st.integers(12, 16),
    max_step_tokens=st.integers(4, 40),
)
def test_answers_are_those_given_alone_when_the_pool_is_too_small(
    prompts: list[int], n_blocks: int, max_step_tokens: int
) -> None:
    """Preempted as often as need be: no token lost, none said twice, and it comes to an end."""
    submissions = [submission(rid, n, sampling(max_tokens=18)) for rid, n in enumerate(prompts)]
    wheel = Wheel(engine_config(n_blocks=n_blocks, max_step_tokens=max_step_tokens))
    wheel.submit(*submissions)
    wheel.run()
    assert wheel.tokens == answers_alone(engine_config(), submissions)
    assert wheel.scheduler.stats().blocks_free == n_blocks


def test_chunks_become_smaller_when_steps_take_too_long() -> None:
    """What a step took decides how much of a prompt the next one gets beside a stream."""
    scheduler = Scheduler(engine_config(n_blocks=256, max_model_len=1024, max_step_tokens=512, max_running=2))
    scheduler.submit([submission(1, 100), submission(2, 800)])
    first = scheduler.plan()
    assert first is not None and first.n_tokens == 128
    scheduler.observe(first, 0.1)
    scheduler.commit(first, StepResult(first.step_id, [7]))
    second = scheduler.plan()
    assert second is not None and second.n_tokens == 1 + 96


def test_sequences_are_preempted_when_the_pool_is_too_small() -> None:
    """The test above would say nothing if none ever was."""
    wheel = Wheel(engine_config(n_blocks=12))
    submissions = [submission(rid, 8, sampling(max_tokens=30)) for rid in range(4)]
    wheel.submit(*submissions)
    wheel.run()
    assert wheel.scheduler.stats().preempted_total >= 2
    assert wheel.tokens == answers_alone(engine_config(), submissions)


def test_tables_are_empty_when_ten_thousand_short_requests_have_gone() -> None:
    """Nothing grows with history."""
    wheel = Wheel(engine_config(max_running=16, max_step_tokens=64), checks=False)
    scheduler = wheel.scheduler
    for first in range(0, 10_000, 100):
        for rid in range(first, first + 100):
            wheel.submit(submission(rid, 1 + rid % 9, sampling(max_tokens=1 + rid % 3)))
            if rid % 7 == 0:
                scheduler.finish(rid, FinishReason.CANCELLED)
        wheel.run()
    scheduler.check()
    stats = scheduler.stats()
    assert scheduler.is_empty and not scheduler.has_work and stats.blocks_free == stats.blocks_total
    assert stats.accepted_total == stats.finished_total == stats.released_total == 10_000
    assert len(wheel.ends) == 10_000 and len({end.rid for end in wheel.ends}) == 10_000
    assert len(wheel.runner.sequences) <= 16, "the runner was told of all but the last ends"


def test_everybody_may_leave_when_a_hundred_thousand_wait() -> None:
    """From the end of the queue; a search for each would take longer than a test may."""
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
    """A sequence whose prompt is 9, 9, 9, 9 and whose first token is 9; `own` is what it asks for itself."""
    scheduler = Scheduler(engine_config(speculation=speculation, **limits), table)
    params = sampling(max_tokens=max_tokens, speculation=own, stop_token_ids=stop_token_ids)
    scheduler.submit([Submission(1, [9] * 4, params, 0)])
    plan = planned(scheduler)
    scheduler.commit(plan, result_of(plan, 9))
    scheduler.drain()
    return scheduler


def committed(scheduler: Scheduler, *token_ids: TokenId) -> list[TokenId]:
    """The tokens that are published of a step in which these were sampled."""
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, token_ids))
    scheduler.check()
    return scheduler.drain().token_ids


def test_one_step_gives_several_tokens_when_drafts_come_true() -> None:
    """Four drafts, and one token more."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 9, 9, 9, 8) == [9, 9, 9, 9, 8]
    (row,) = planned(scheduler).rows
    assert (row.start, row.known[row.start :]) == (9, [8])
    stats = scheduler.stats()
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 4)
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (6, 0)


def test_tokens_end_with_the_first_that_no_draft_foresaw() -> None:
    """It is true; what was sampled behind a wrong draft is not, even where it agrees. The next step begins there."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 7, 9, 9, 9) == [9, 7]
    (row,) = planned(scheduler).rows
    assert (row.start, row.known[row.start :]) == (6, [7])
    stats = scheduler.stats()
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 1)
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (3, 0)


@pytest.mark.parametrize(("speculation", "own"), [("off", None), ("off", "off"), ("ngram", "off")])
def test_no_row_has_drafts_when_speculation_is_off(speculation: Speculation, own: Speculation | None) -> None:
    """A sequence's own word counts before the engine's."""
    (row,) = planned(repeating_scheduler(speculation=speculation, own=own)).rows
    assert row.n_samples == 1


@pytest.mark.parametrize(("speculation", "own"), [("ngram", None), ("ngram", "ngram"), ("off", "ngram")])
def test_rows_have_drafts_when_speculation_is_on(speculation: Speculation, own: Speculation | None) -> None:
    """As many as the engine allows."""
    (row,) = planned(repeating_scheduler(speculation=speculation, own=own)).rows
    assert row.n_samples == 5


def test_sequence_ends_with_an_end_token_behind_drafts() -> None:
    """Whatever was sampled behind wrong drafts."""
    scheduler = repeating_scheduler()
    assert committed(scheduler, 9, 9, EOS, 9, 9) == [9, 9, EOS]
    assert scheduler.is_empty and scheduler.stats().wasted_tokens_total == 0


@pytest.mark.parametrize(("field", "value"), [("max_length", 7), ("end_ids", frozenset({9}))])
def test_no_token_is_said_behind_the_end_when_drafts_go_beyond_it(field: str, value: object) -> None:
    """Which those of ours never do; the others are wasted, and the account is whole."""
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


def test_sequence_ends_at_its_length_when_drafts_come_true() -> None:
    """Exactly there."""
    scheduler = repeating_scheduler(max_tokens=4)
    assert committed(scheduler, 9, 9, 9) == [9, 9, 9]
    assert scheduler.is_empty


def test_true_tokens_are_wasted_when_their_sequence_left_in_flight() -> None:
    """Two were true; drafts that failed are in neither account."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, StepResult(plan.step_id, [9, 7, 9, 9, 9]))
    stats = scheduler.stats()
    assert (stats.generated_tokens_total, stats.wasted_tokens_total) == (1, 2)
    assert (stats.draft_tokens_total, stats.accepted_draft_tokens_total) == (4, 1)


def test_commit_raises_when_a_draft_has_no_sample() -> None:
    """One for each draft, and one more."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    for n_tokens in (1, 4, 6):
        with pytest.raises(InvariantError, match="does not fit"):
            scheduler.commit(plan, StepResult(plan.step_id, [9] * n_tokens))


def test_drafts_say_nothing_of_how_long_prompts_take() -> None:
    """A step with drafts and no prompt is a step of streams."""
    scheduler = repeating_scheduler(max_step_tokens=512, n_blocks=256, max_model_len=1000)
    plan = planned(scheduler)
    assert plan.n_tokens == 5
    scheduler.observe(plan, 0.001)
    scheduler.commit(plan, result_of(plan, 9))
    scheduler.submit([submission(2, 800)])
    assert planned(scheduler).n_tokens == 1 + 128, "the chunk is as it was"


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    period=st.integers(1, 9),
    n_blocks=st.integers(12, 24),
    max_step_tokens=st.integers(4, 40),
)
def test_answers_are_those_without_drafts(prompts: list[int], period: int, n_blocks: int, max_step_tokens: int) -> None:
    """Text that repeats itself, and a pool that may be too small."""
    submissions = [submission(rid, n, sampling(max_tokens=18)) for rid, n in enumerate(prompts)]
    config = engine_config(n_blocks=n_blocks, max_step_tokens=max_step_tokens, speculation="ngram")
    wheel = Wheel(config, period=period)
    wheel.submit(*submissions)
    wheel.run()
    assert wheel.tokens == answers_alone(engine_config(), submissions, period=period)
    assert wheel.scheduler.stats().blocks_free == n_blocks


def test_text_that_repeats_itself_takes_fewer_steps() -> None:
    """Five tokens a step, once the period has been seen."""
    turns = {}
    for speculation in ("off", "ngram"):
        wheel = Wheel(engine_config(speculation=speculation), period=6)
        wheel.submit(submission(1, 4, sampling(max_tokens=60)))
        turns[speculation] = wheel.run()
    assert turns["off"] == 60 and turns["ngram"] <= 8 + 52 // 5 + 1


def test_text_that_does_not_repeat_itself_costs_few_drafts() -> None:
    """A hundred tokens, in which pairs of letters come again and what follows them does not."""
    wheel = Wheel(engine_config(speculation="ngram"))
    wheel.submit(submission(1, 4, sampling(max_tokens=200)))
    wheel.run()
    stats = wheel.scheduler.stats()
    assert 0 < stats.draft_tokens_total < 80


# Log-probabilities.


def logprobs_of(*token_ids: TokenId) -> list[Logprobs]:
    """Different ones for different tokens."""
    return [Logprobs(-float(token_id), (), ()) for token_id in token_ids]


def test_logprobs_go_with_their_tokens() -> None:
    """By their place among all tokens of the step; a row that does without has none."""
    scheduler = scheduler_with(1, 2, 3)
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, [5, 6, 7], [None, *logprobs_of(6, 7)]))
    outputs = scheduler.drain()
    assert outputs.token_ids == [5, 6, 7]
    assert outputs.logprobs == dict(enumerate(logprobs_of(6, 7), 1))


def test_logprobs_of_accepted_drafts_go_with_their_tokens() -> None:
    """And none of those that were not accepted."""
    scheduler = repeating_scheduler()
    plan = planned(scheduler)
    sampled = [9, 9, 7, 9, 9]
    scheduler.commit(plan, StepResult(plan.step_id, sampled, logprobs_of(1, 2, 3, 4, 5)))
    outputs = scheduler.drain()
    assert outputs.token_ids == [9, 9, 7]
    assert outputs.logprobs == dict(enumerate(logprobs_of(1, 2, 3)))


def test_logprobs_are_dropped_with_the_token_of_a_sequence_that_left() -> None:
    """Those of others stay with theirs."""
    scheduler = scheduler_with(1, 2)
    plan = planned(scheduler)
    scheduler.finish(1, FinishReason.CANCELLED)
    scheduler.commit(plan, StepResult(plan.step_id, [5, 6], logprobs_of(5, 6)))
    outputs = scheduler.drain()
    assert (outputs.rids, outputs.logprobs) == ([2], dict(enumerate(logprobs_of(6))))


def test_places_are_told_when_groups_are_watched() -> None:
    """One slot: each moves up as those before it end or leave; nobody else is told of."""
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


def test_prompt_is_counted_in_chunks_when_it_is_watched() -> None:
    """40 tokens in steps of 16."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 40)], is_watched=True)
    told: list[Progressed] = []
    for second in range(4):
        plan = planned(scheduler)
        scheduler.commit(plan, result_of(plan))
        told += scheduler.progress(float(second))
    assert told == [Progressed(1, Progress(0, n_computed, 40)) for n_computed in (16, 32, 40)]


def test_no_progress_is_told_after_the_first_token() -> None:
    """Not even what has changed with it, when it was told too shortly before to be told again at once."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, 20)], is_watched=True)
    told = []
    for now_s in (0.0, 0.01, 1.0):
        plan = planned(scheduler)
        scheduler.commit(plan, result_of(plan))
        told.append(scheduler.progress(now_s))
    assert told == [[Progressed(1, Progress(0, 16, 20))], [], []]


def test_nothing_is_watched_when_a_group_is_refused() -> None:
    """There is nothing to wait for."""
    scheduler = Scheduler(engine_config())
    scheduler.submit([submission(1, n_prompt=0)], is_watched=True)
    assert scheduler.progress(0.0) == []


def test_sequence_ends_with_an_error_where_the_model_gives_no_token() -> None:
    """It takes nothing of that step; its neighbour goes on, and the end is counted once."""
    scheduler = scheduler_with(1, 2)
    plan = planned(scheduler)
    scheduler.commit(plan, StepResult(plan.step_id, [NO_TOKEN, 5]))
    scheduler.check()
    outputs, stats = scheduler.drain(), scheduler.stats()
    assert outputs.rids == [2] and outputs.token_ids == [5]
    assert [(end.rid, end.reason, end.refusal) for end in outputs.ends] == [(1, FinishReason.ERROR, NO_LOGITS)]
    assert (stats.no_tokens_total, stats.generated_tokens_total, stats.wasted_tokens_total) == (1, 1, 1)
    assert [row.rid for row in planned(scheduler).rows] == [2]


def test_nobody_is_refused_where_all_of_a_group_live() -> None:
    """Their ends say it."""
    scheduler = scheduler_with(1, 2)
    scheduler.drain()
    scheduler.fail([1, 2], NO_LOGITS)
    outputs = scheduler.drain()
    assert [end.rid for end in outputs.ends] == [1, 2] and outputs.rejections == []


def test_what_cannot_be_taken_in_is_refused_or_ends() -> None:
    """Each has exactly one terminal: those that live an end, all others a rejection."""
    scheduler = scheduler_with(1)
    scheduler.drain()
    scheduler.fail([1, 7], NO_LOGITS)
    scheduler.check()
    outputs = scheduler.drain()
    assert [(end.rid, end.reason, end.refusal) for end in outputs.ends] == [(1, FinishReason.ERROR, NO_LOGITS)]
    assert [(rejection.rids, rejection.refusal) for rejection in outputs.rejections] == [((7,), NO_LOGITS)]
    assert scheduler.is_empty
