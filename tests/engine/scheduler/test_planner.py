"""Which rows a step has."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.drafts import Drafter
from sluiceway.engine.scheduler.planner import BatchPlanner, preemption_order
from sluiceway.engine.scheduler.sequence import Input, Sequence, State
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from support.scheduling import engine_config, request, sampling


def table_with(*requests: Sequence, n_blocks: int = 64, max_running: int = 4) -> SequenceTable:
    """Return a table in which these sequences wait; a block has four tokens."""
    table = SequenceTable(engine_config(n_blocks=n_blocks, max_running=max_running, max_step_tokens=64))
    for one in requests:
        table.enter(one)
    return table


def start(table: SequenceTable, *requests: Sequence, n_generated: int = 1) -> None:
    """Start these sequences; all but their last known token is computed."""
    for one in requests:
        table.start(one)
        for _ in range(n_generated):
            one.append(1)
        one.n_computed = len(one.known) - 1


def fill(table: SequenceTable, max_step_tokens: int = 16, chunk_tokens: int | None = None) -> BatchPlanner:
    draft = BatchPlanner(
        table,
        step_id=table.launched + 1,
        max_step_tokens=max_step_tokens,
        chunk_tokens=chunk_tokens or max_step_tokens,
    )
    draft.fill()
    return draft


def shape(draft: BatchPlanner) -> list[tuple[int, int, int, bool]]:
    """Return the rid, start, number of tokens and `samples` of each row."""
    return [(row.rid, row.start, row.n_tokens, row.samples) for row in draft.rows]


def test_no_rows_are_planned_without_sequences() -> None:
    assert shape(fill(table_with())) == []


def test_prompt_is_computed_whole_when_the_budget_allows() -> None:
    """Its one row samples the first token."""
    assert shape(fill(table_with(request(1, n_prompt=10)))) == [(1, 0, 10, True)]


def test_prompt_is_computed_in_chunks_when_it_is_longer_than_the_budget() -> None:
    """Only the last chunk samples."""
    one = request(1, n_prompt=10)
    table = table_with(one)
    assert shape(fill(table, 4)) == [(1, 0, 4, False)]
    one.n_computed, one.in_flight = 4, None
    assert shape(fill(table, 4)) == [(1, 4, 4, False)]
    one.n_computed, one.in_flight = 8, None
    assert shape(fill(table, 4)) == [(1, 8, 2, True)]


def test_prompt_is_cut_to_a_chunk_when_streams_share_the_step() -> None:
    """The tokens of streams do not count against the chunk."""
    long, a, b = request(1, n_prompt=40, arrival=2), request(2, arrival=0), request(3, arrival=1)
    table = table_with(a, b, long)
    start(table, a, b)
    assert shape(fill(table, 16, chunk_tokens=5)) == [(2, 4, 1, True), (3, 4, 1, True), (1, 0, 5, False)]


def test_prompts_are_cut_to_a_chunk_when_several_wait_for_their_first_token() -> None:
    """The first prompt does not wait for the last."""
    table = table_with(request(1, n_prompt=10, arrival=0), request(2, n_prompt=10, arrival=1))
    assert shape(fill(table, 32, chunk_tokens=12)) == [(1, 0, 10, True), (2, 0, 2, False)]


def test_first_prompt_may_exceed_the_chunk_when_all_others_wait_behind_it() -> None:
    """Smaller steps would not serve the others sooner. It may have a slot, or be the first in the queue."""
    first, second = request(1, n_prompt=20, arrival=0), request(2, n_prompt=10, arrival=1)
    table = table_with(first, second)
    assert shape(fill(table, 16, chunk_tokens=5)) == [(1, 0, 16, False)]
    first.n_computed, first.in_flight = 12, None
    assert shape(fill(table, 16, chunk_tokens=5)) == [(1, 12, 8, True)]


def test_prompt_has_the_whole_step_when_it_is_alone() -> None:
    """Large matrix products are the fastest way to compute a prompt."""
    assert shape(fill(table_with(request(1, n_prompt=40)), 16, chunk_tokens=5)) == [(1, 0, 16, False)]


def test_row_has_all_that_a_runner_needs() -> None:
    """The row shares the lists of the scheduler and does not copy them."""
    one = request(1, n_prompt=6)
    table = table_with(one)
    (row,) = fill(table).rows
    assert row.known is one.known and row.block_ids is table.leases.blocks_of(1)
    assert (row.n_prompt, row.sampling, row.seed) == (6, one.sampling, one.seed)
    assert (one.in_flight, one.was_planned) == (1, True)


def test_streams_get_their_token_first_when_a_long_prompt_runs() -> None:
    """The prompt is older, and gets the rest of the budget."""
    long, a, b = request(1, n_prompt=40, arrival=0), request(2, arrival=1), request(3, arrival=2)
    table = table_with(long, a, b)
    table.start(long)
    start(table, a, b)
    assert shape(fill(table, 8)) == [(2, 4, 1, True), (3, 4, 1, True), (1, 0, 6, False)]


def test_prompts_share_what_is_left_in_order_of_arrival() -> None:
    """The oldest prompt is finished first; waiting prompts come last."""
    old, young, waiting = (request(rid, n_prompt=10, arrival=rid) for rid in (1, 2, 3))
    table = table_with(old, young, waiting)
    table.start(old)
    table.start(young)
    assert shape(fill(table, 12)) == [(1, 0, 10, True), (2, 0, 2, False)]
    old.in_flight = young.in_flight = None
    assert shape(fill(table, 24)) == [(1, 0, 10, True), (2, 0, 10, True), (3, 0, 4, False)]


def test_no_sequence_starts_when_the_budget_is_spent() -> None:
    one, two = request(1, n_prompt=16), request(2)
    table = table_with(one, two)
    fill(table, 16)
    assert two.state is State.WAITING


def test_no_sequence_starts_when_all_slots_are_taken() -> None:
    table = table_with(*(request(rid, arrival=rid) for rid in range(3)), max_running=2)
    assert [row.rid for row in fill(table).rows] == [0, 1]


def test_sequence_in_flight_is_left_out() -> None:
    """A sequence is in at most one plan at a time."""
    one = request(1)
    table = table_with(one)
    assert len(fill(table).rows) == 1
    assert fill(table).rows == []


def test_paused_sequence_is_left_out_until_it_is_resumed() -> None:
    one = request(1)
    table = table_with(one)
    start(table, one)
    table.move(one, Input.PAUSE)
    assert fill(table).rows == []
    table.move(one, Input.RESUME)
    assert shape(fill(table)) == [(1, 4, 1, True)]


def test_growing_answer_gets_another_block() -> None:
    """The fifth token needs a second block of four."""
    one = request(1, n_prompt=4)
    table = table_with(one)
    start(table, one)
    (row,) = fill(table).rows
    assert len(row.block_ids) == 2


def test_the_youngest_is_preempted_when_the_pool_is_empty() -> None:
    """Each sequence holds one of three blocks. The oldest needs a second, and gets it in the same step."""
    requests = [request(rid, arrival=rid) for rid in range(3)]
    table = table_with(*requests, n_blocks=3)
    for one in requests:
        table.leases.grow(one.rid, 1)
        start(table, one, n_generated=1 if one.rid == 0 else 0)
    requests[1].n_computed = requests[2].n_computed = 0
    draft = fill(table)
    assert [one.state for one in requests] == [State.RUNNING, State.RUNNING, State.PREEMPTED]
    assert draft.n_preempted == 1
    assert shape(draft) == [(0, 4, 1, True), (1, 0, 4, True)]
    assert requests[2].n_computed == 0 and table.queue.first() is requests[2]


def test_a_paused_sequence_is_preempted_first_when_the_pool_is_empty() -> None:
    """It is parked although it is the oldest."""
    paused, growing = request(1, arrival=0), request(2, arrival=1)
    table = table_with(paused, growing, n_blocks=2)
    table.leases.grow(1, 1)
    table.leases.grow(2, 1)
    start(table, paused, growing)
    table.move(paused, Input.PAUSE)
    draft = fill(table)
    assert paused.state is State.PARKED and draft.n_preempted == 1
    assert shape(draft) == [(2, 4, 1, True)]


def test_a_young_sequence_waits_when_only_older_ones_could_be_preempted() -> None:
    """It keeps its block, and no waiting sequence starts before it."""
    old, growing, waiting = (request(rid, arrival=rid, n_prompt=n) for rid, n in ((1, 3), (2, 4), (3, 1)))
    table = table_with(old, growing, n_blocks=2)
    start(table, old, n_generated=1)
    table.leases.grow(2, 1)
    start(table, growing)
    table.enter(waiting)
    draft = fill(table)
    assert shape(draft) == [(1, 3, 1, True)]
    assert growing.state is State.RUNNING and draft.n_preempted == 0
    assert waiting.state is State.WAITING


def test_no_second_sequence_is_preempted_while_a_preempted_block_is_fenced() -> None:
    """A step is in flight. Until it ends and the block returns, no row that needs a block is planned."""
    params = sampling(max_tokens=50)
    growing, middle, victim = (request(rid, arrival=rid, params=params) for rid in range(3))
    table = table_with(growing, middle, victim, n_blocks=3)
    for one in (growing, middle, victim):
        table.leases.grow(one.rid, 1)
        start(table, one)
    table.launched = 1
    draft = fill(table)
    assert draft.rows == [] and draft.n_preempted == 1
    assert [one.state for one in (growing, middle, victim)] == [State.RUNNING, State.RUNNING, State.PREEMPTED]
    again = fill(table)
    assert again.rows == [] and again.n_preempted == 0, "the fenced block is enough for the sequence that needs one"
    table.leases.settle(1)
    table.launched = 1
    served = fill(table)
    assert shape(served) == [(0, 4, 1, True)]
    assert served.n_preempted == 0, "the second finds no victim younger than itself"


def start_repeating(table: SequenceTable, *requests: Sequence) -> None:
    """Start these sequences with a text that repeats itself, so that it gives any number of drafts."""
    start(table, *requests, n_generated=3)


def drafting(rid: int, *, arrival: int = 0, most: int = 8, max_tokens: int = 100) -> Sequence:
    return request(rid, params=sampling(max_tokens=max_tokens), arrival=arrival, drafter=Drafter(most))


def drafts(step: BatchPlanner) -> dict[int, int]:
    """Return the number of drafts of each row."""
    return {row.rid: len(row.drafts) for row in step.rows}


def test_row_has_drafts_when_its_text_repeats_itself() -> None:
    """Drafts follow the next token and count as tokens of the step. Rows without a drafter have none."""
    one, other = drafting(1, most=5), request(2, arrival=1)
    table = table_with(one, other)
    start_repeating(table, one, other)
    step = fill(table)
    assert shape(step) == [(1, 6, 6, True), (2, 6, 1, True)]
    assert list(step.rows[0].drafts) == [1] * 5
    assert list(step.rows[1].drafts) == []


def test_a_stream_that_is_alone_has_drafts_beyond_a_chunk() -> None:
    one = drafting(1, most=5)
    table = table_with(one)
    start_repeating(table, one)
    assert drafts(fill(table, chunk_tokens=2)) == {1: 5}


def test_row_has_no_drafts_when_nothing_repeats_itself() -> None:
    one = drafting(1)
    table = table_with(one)
    start(table, one)
    assert drafts(fill(table)) == {1: 0}


def test_prompt_has_no_drafts() -> None:
    """The last chunk, which samples, has none either."""
    one = drafting(1)
    one.known[:] = [1, 1, 1, 1]
    assert drafts(fill(table_with(one))) == {1: 0}


def test_drafts_use_only_what_is_left_of_the_budget() -> None:
    """Tokens of streams come first, then prompts, then waiting sequences. A chunk bounds everything beyond streams."""
    one, prompt, waiting = drafting(1), request(2, n_prompt=6, arrival=1), request(3, n_prompt=3, arrival=2)
    for max_step_tokens, n_drafts in ((10, 0), (12, 2), (14, 4), (40, 8)):
        table = table_with(one, prompt, waiting)
        start_repeating(table, one)
        table.start(prompt)
        step = fill(table, max_step_tokens)
        assert drafts(step)[1] == n_drafts and step.rows[1].n_tokens == 6
        one, prompt, waiting = drafting(1), request(2, n_prompt=6, arrival=1), request(3, n_prompt=3, arrival=2)
    table = table_with(one, prompt, waiting)
    start_repeating(table, one)
    assert drafts(fill(table, 40, chunk_tokens=11)) == {1: 2, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("n_rows", "expected"),
    [(1, [8]), (3, [8, 8, 8]), (5, [6, 6, 5, 5, 5]), (20, [1] * 12 + [0] * 8), (31, [1] + [0] * 30), (40, [0] * 40)],
)
def test_drafts_are_shared_evenly_and_stop_in_large_batches(n_rows: int, expected: list[int]) -> None:
    """A step with drafts has at most 32 tokens; older sequences get the remainder."""
    requests = [drafting(rid, arrival=rid) for rid in range(n_rows)]
    table = table_with(*requests, n_blocks=400, max_running=64)
    start_repeating(table, *requests)
    assert list(drafts(fill(table, 512)).values()) == expected


def test_unused_share_of_drafts_goes_to_other_sequences() -> None:
    first, second = drafting(1, arrival=0, most=30), drafting(2, arrival=1, most=30)
    table = table_with(first, second)
    start(table, first)
    start_repeating(table, second)
    assert drafts(fill(table, 512)) == {1: 0, 2: 30}


def test_drafts_leave_one_free_block_for_each_running_sequence() -> None:
    """Seven known tokens in two blocks of four leave room for one more; each further block has room for four."""
    for n_blocks, n_drafts in ((2, 1), (3, 1), (4, 5), (5, 8)):
        one = drafting(1)
        table = table_with(one, n_blocks=n_blocks)
        start_repeating(table, one)
        table.cover(one)
        step = fill(table)
        assert drafts(step) == {1: n_drafts}
        assert len(step.rows[0].block_ids) * 4 >= 7 + n_drafts
    assert table.pool.n_free >= 1


def test_drafts_stay_in_their_own_blocks_when_another_sequence_needs_one() -> None:
    """The young sequence fills its blocks with eight known tokens. The old one has room for one more in its own."""
    old, young = drafting(1, arrival=0), drafting(2, arrival=1)
    table = table_with(old, young, n_blocks=3)
    start_repeating(table, old)
    table.cover(old)
    start(table, young)
    step = fill(table)
    assert drafts(step) == {1: 1} and step.n_preempted == 0


def test_drafts_do_not_go_beyond_the_maximum_length() -> None:
    """One more token is sampled after the last draft, so nine allowed and three generated tokens leave five drafts."""
    for max_tokens, n_drafts in ((9, 5), (5, 1), (4, 0)):
        one = drafting(1, max_tokens=max_tokens)
        table = table_with(one)
        start_repeating(table, one)
        assert drafts(fill(table)) == {1: n_drafts}


# The order of preemption.


def with_slot(arrival: int, *, paused: bool = False) -> Sequence:
    one = request(arrival, arrival=arrival)
    one.receive(Input.SCHEDULE)
    if paused:
        one.receive(Input.PAUSE)
    return one


def test_the_youngest_running_sequence_is_preempted_first() -> None:
    oldest, middle, youngest = with_slot(0), with_slot(1), with_slot(2)
    assert preemption_order([middle, youngest, oldest]) == [oldest, middle, youngest]


def test_paused_sequences_are_preempted_before_running_ones() -> None:
    paused_old, paused_young, running = with_slot(0, paused=True), with_slot(1, paused=True), with_slot(2)
    assert preemption_order([paused_old, paused_young, running]) == [running, paused_old, paused_young]


def test_two_sequences_of_one_step_may_each_preempt_another() -> None:
    paused = [request(rid, arrival=rid) for rid in range(2)]
    growing = [request(rid, arrival=rid) for rid in (2, 3)]
    table = table_with(*paused, *growing, n_blocks=4)
    for one in (*paused, *growing):
        table.leases.grow(one.rid, 1)
        start(table, one)
    for one in paused:
        table.move(one, Input.PAUSE)
    planner = fill(table)
    assert planner.n_preempted == 2 and [row[0] for row in shape(planner)] == [2, 3]
