"""The fake runner: its text, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.errors import InvariantError
from sluiceway.types import BlockId, Logprobs, Rid, SamplingParams, TokenId

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=1.0)
PROMPT = list(b"once upon a time")
EOS = 256


def fake(*, eos_every: int = 0, period: int = 0, n_blocks: int | None = 16) -> FakeRunner:
    """Four tokens a block."""
    return FakeRunner(n_blocks=n_blocks, block_tokens=4, eos_token_id=EOS, eos_every=eos_every, period=period)


def row(
    known: Sequence[TokenId] = PROMPT,
    start: int = 0,
    n_tokens: int | None = None,
    *,
    rid: Rid = 1,
    block_ids: Sequence[BlockId] = tuple(range(16)),
    samples: bool | None = None,
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
    drafts: Sequence[TokenId] = (),
) -> Row:
    """A row up to the end of what is known, and of the drafts behind it; or shorter, `n_tokens` known ones."""
    n_tokens = len(known) - start if n_tokens is None else n_tokens
    return Row(
        rid=rid,
        known=known,
        start=start,
        n_tokens=n_tokens + len(drafts),
        block_ids=block_ids,
        samples=start + n_tokens == len(known) if samples is None else samples,
        n_prompt=len(PROMPT),
        sampling=sampling,
        seed=seed,
        drafts=drafts,
    )


def step(runner: FakeRunner, *rows: Row, step_id: int = 1, retired: tuple[Rid, ...] = ()) -> Sequence[TokenId]:
    result = runner.launch(Plan(step_id, rows, retired)).wait()
    assert result.step_id == step_id
    return result.token_ids


def generate(runner: FakeRunner, n: int, sampling: SamplingParams = GREEDY, seed: int = 0) -> list[TokenId]:
    known, start = list(PROMPT), 0
    for _ in range(n):
        (token_id,) = step(runner, row(known, start, sampling=sampling, seed=seed))
        start = len(known)
        known.append(token_id)
    return known[len(PROMPT) :]


def test_text_looks_like_words() -> None:
    """Five letters and a space, printable ASCII."""
    text = bytes(generate(fake(), 30)).decode("ascii")
    words = text.split(" ")
    assert [len(word) for word in words] == [5, 5, 5, 5, 5, 0]
    assert len(set(words)) > 3


def test_text_is_the_same_when_all_is_the_same() -> None:
    """A function, without memory or chance."""
    assert generate(fake(), 20, WARM, seed=3) == generate(fake(), 20, WARM, seed=3)


def test_text_depends_on_the_seed_unless_it_is_greedy() -> None:
    """As with a model."""
    assert generate(fake(), 20, WARM, seed=3) != generate(fake(), 20, WARM, seed=4)
    assert generate(fake(), 20, GREEDY, seed=3) == generate(fake(), 20, GREEDY, seed=4)


@pytest.mark.parametrize("position", range(len(PROMPT)))
def test_next_token_depends_on_every_known_token(position: int) -> None:
    """Over several seeds, since few letters are to choose from."""
    changed = [*PROMPT[:position], PROMPT[position] + 1, *PROMPT[position + 1 :]]
    pairs = [
        (step(fake(), row(sampling=WARM, seed=seed)), step(fake(), row(changed, sampling=WARM, seed=seed)))
        for seed in range(8)
    ]
    assert any(before != after for before, after in pairs)


def test_end_token_comes_when_its_turn_has_come() -> None:
    """Every fifth."""
    answer = generate(fake(eos_every=5), 12)
    assert [index for index, token_id in enumerate(answer) if token_id == EOS] == [4, 9]


def test_end_token_does_not_come_when_too_few_were_generated() -> None:
    """`min_tokens` bans it."""
    answer = generate(fake(eos_every=5), 12, SamplingParams(temperature=0.0, min_tokens=5))
    assert [index for index, token_id in enumerate(answer) if token_id == EOS] == [9]


def test_nothing_is_sampled_when_a_chunk_ends_before_the_prompt_does() -> None:
    """And the whole gives what the chunks give."""
    runner = fake()
    assert step(runner, row(n_tokens=5)) == []
    assert step(runner, row(start=5, n_tokens=4)) == []
    assert step(runner, row(start=9)) == step(fake(), row())


def test_step_takes_its_time_when_it_is_waited_for() -> None:
    """Not when it is launched; the clock is somebody else's."""
    slept: list[float] = []
    runner = FakeRunner(step_s=0.5, sleep=slept.append)
    launched = runner.launch(Plan(1, (row(),), ()))
    assert slept == []
    launched.wait()
    assert slept == [0.5]


@pytest.mark.parametrize("step_s", [0.0, 0.5])
def test_step_takes_no_time_when_it_need_not(step_s: float) -> None:
    """No time, or nothing to sleep with."""
    slept: list[float] = []
    runner = FakeRunner(step_s=step_s, sleep=None if step_s else slept.append)
    assert len(step(runner, row())) == 1
    assert slept == []


def test_sequence_is_forgotten_when_it_is_retired() -> None:
    """With the next plan."""
    runner = fake()
    step(runner, row(rid=1), row(rid=2, block_ids=range(4, 8)), row(rid=3, block_ids=range(8, 12)))
    assert runner.sequences.keys() == {1, 2, 3}
    step(runner, row([*PROMPT, 1], len(PROMPT), rid=2, block_ids=range(4, 9)), step_id=2, retired=(1, 3, 99))
    assert runner.sequences.keys() == {2}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (row(start=-1, n_tokens=2), "2 tokens from -1 of 16"),
        (row(n_tokens=0), "0 tokens from 0"),
        (row(n_tokens=17), "17 tokens from 0 of 16"),
        (row(samples=False), "16 tokens from 0 of 16"),
        (row(n_tokens=3, samples=True), "3 tokens from 0 of 16"),
        (row(block_ids=(0, 1, 2)), "3 blocks do not cover 16 tokens"),
        (row(block_ids=(0, 1, 2, 16)), "block 16 is not in the cache"),
        (row(block_ids=(0, -1, 2, 3)), "block -1 is not in the cache"),
        (row(start=15, drafts=(1,), block_ids=(0, 1, 2, 3)), "4 blocks do not cover 17 tokens"),
        (row(n_tokens=3, drafts=(1,)), "1 drafts behind a chunk"),
        (row(start=16, drafts=(1,)), "0 tokens from 16 of 16"),
    ],
)
def test_launch_raises_when_a_row_cannot_be(bad: Row, sentence: str) -> None:
    """Positions beyond what is known, blocks too few or unknown."""
    with pytest.raises(InvariantError, match=sentence):
        fake().launch(Plan(1, (bad,), ()))


def test_launch_takes_any_block_when_the_cache_has_no_size() -> None:
    """For a server without a model."""
    assert len(step(fake(n_blocks=None), row(block_ids=(10**6, 1, 2, 3)))) == 1


def test_launch_raises_when_two_rows_are_of_one_sequence() -> None:
    """One step at a time computes for it."""
    with pytest.raises(InvariantError, match="two rows"):
        fake().launch(Plan(1, (row(), row(block_ids=range(4, 8))), ()))


def test_launch_raises_when_two_rows_share_a_block() -> None:
    """In one plan."""
    with pytest.raises(InvariantError, match="block 3 belongs to sequences 1 and 2"):
        fake().launch(Plan(1, (row(rid=1), row(rid=2, block_ids=range(3, 7))), ()))


def test_launch_raises_when_a_block_is_used_by_a_step_in_flight() -> None:
    """Until that has been waited for."""
    runner = fake()
    first = runner.launch(Plan(1, (row(rid=1),), ()))
    with pytest.raises(InvariantError, match="belongs to sequences 1 and 2"):
        runner.launch(Plan(2, (row(rid=2),), ()))
    first.wait()
    assert len(step(runner, row(rid=2), step_id=2)) == 1


def test_wait_raises_when_steps_are_out_of_order() -> None:
    """Each once, the oldest first."""
    runner = fake()
    first = runner.launch(Plan(1, (row(rid=1),), ()))
    second = runner.launch(Plan(2, (row(rid=2, block_ids=range(4, 8)),), ()))
    with pytest.raises(InvariantError, match="out of order"):
        second.wait()
    first.wait()
    second.wait()
    with pytest.raises(InvariantError, match="out of order"):
        second.wait()


def test_wait_raises_when_positions_were_skipped() -> None:
    """Five computed, the row begins at six; or at eight, with a block that was never written."""
    for start in (6, 8):
        runner = fake()
        step(runner, row(n_tokens=5))
        with pytest.raises(InvariantError, match="does not hold its tokens"):
            step(runner, row(start=start), step_id=2)


def test_wait_raises_when_positions_are_computed_twice() -> None:
    """Five computed, the row begins at three."""
    runner = fake()
    step(runner, row(n_tokens=5))
    with pytest.raises(InvariantError, match="does not hold its tokens"):
        step(runner, row(start=3, n_tokens=5), step_id=2)


def test_wait_raises_when_a_block_was_written_by_another_meanwhile() -> None:
    """Even with the same tokens at the same place, after others."""
    runner = fake()
    step(runner, row(rid=1))
    other = [1, 2, 3, 4, *PROMPT[4:]]
    step(runner, row(other, rid=2, block_ids=(8, 1, 9, 10)), step_id=2)
    with pytest.raises(InvariantError, match="sequence 1: block 1 does not hold its tokens"):
        step(runner, row([*PROMPT, 1], len(PROMPT), rid=1), step_id=3)


def test_blocks_are_read_by_another_when_they_hold_its_tokens() -> None:
    """As a shared prefix would be: what counts is what a block holds, not who wrote it."""
    runner = fake()
    step(runner, row(rid=1))
    longer = [*PROMPT, 1]
    assert step(runner, row(longer, len(PROMPT), rid=2), step_id=2) == step(fake(), row(longer, rid=2))


def test_sequence_stays_forgotten_when_it_is_retired_while_its_step_is_in_flight() -> None:
    """The step that is still to be computed does not bring it back."""
    runner = fake()
    first = runner.launch(Plan(1, (row(rid=1),), ()))
    second = runner.launch(Plan(2, (row(rid=2, block_ids=range(4, 8)),), (1,)))
    first.wait()
    second.wait()
    assert runner.sequences.keys() == {2}


def test_blocks_may_be_used_anew_when_a_sequence_begins_again() -> None:
    """From position zero, in any blocks."""
    runner = fake()
    first = step(runner, row())
    assert step(runner, row(block_ids=(3, 2, 1, 0)), step_id=2) == first


def test_text_has_a_refrain_when_it_has_a_period() -> None:
    """Of each five tokens four are the same, with a seed of its own too; the fifth differs, now and then."""
    for sampling in (GREEDY, WARM):
        answer = generate(fake(period=5), 40, sampling, seed=3)
        rounds = [answer[place : place + 5] for place in range(0, 40, 5)]
        assert len({tuple(one[:4]) for one in rounds}) == 1
        assert len({one[4] for one in rounds}) > 1


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "seeded"])
def test_a_token_is_sampled_after_each_draft(sampling: SamplingParams) -> None:
    """The very ones that come one by one, as long as the drafts are right."""
    answer = generate(fake(), 6, sampling, seed=4)
    runner = fake()
    step(runner, row(sampling=sampling, seed=4))
    drafted = row([*PROMPT, answer[0]], len(PROMPT), drafts=answer[1:5], sampling=sampling, seed=4)
    assert step(runner, drafted, step_id=2) == answer[1:]


@pytest.mark.parametrize("n_right", range(5))
def test_sequence_goes_on_behind_its_last_right_draft(n_right: int) -> None:
    """Wrong ones leave nothing behind, whichever blocks they were in: 16 tokens of the prompt, four a block."""
    answer = generate(fake(), 12)
    runner = fake()
    step(runner, row())
    wrong = [token_id + 1 for token_id in answer[1 + n_right :]]
    drafts = [*answer[1 : 1 + n_right], *wrong][:6]
    sampled = step(runner, row([*PROMPT, answer[0]], 16, drafts=drafts), step_id=2)
    assert len(sampled) == 7 and sampled[: n_right + 1] == answer[1 : n_right + 2]
    known = [*PROMPT, *answer[: n_right + 2]]
    assert step(runner, row(known, len(known) - 1), step_id=3) == [answer[n_right + 2]]


def test_wait_raises_when_a_wrong_draft_is_taken_for_computed() -> None:
    """The row begins behind it."""
    answer = generate(fake(), 4)
    runner = fake()
    step(runner, row())
    step(runner, row([*PROMPT, answer[0]], 16, drafts=[answer[1] + 1]), step_id=2)
    with pytest.raises(InvariantError, match="does not hold its tokens"):
        step(runner, row([*PROMPT, *answer[:3]], 18), step_id=3)


def test_wait_raises_when_wrong_drafts_were_written_over_what_another_reads() -> None:
    """Their block holds nothing of anybody any more."""
    runner = fake()
    step(runner, row(rid=1, n_tokens=8))
    answer = generate(fake(), 4)
    blocks = (8, 9, 10, 11, 12, 1)
    step(runner, row(rid=2, block_ids=blocks), step_id=2)
    wrong = [token_id + 1 for token_id in answer[1:]] * 2
    step(runner, row([*PROMPT, answer[0]], 16, rid=2, drafts=wrong[:5], block_ids=blocks), step_id=3)
    with pytest.raises(InvariantError, match="sequence 1: block 1 does not hold its tokens"):
        step(runner, row(rid=1, start=8), step_id=4)


def told(*rows: Row) -> Sequence[Logprobs | None]:
    return fake().launch(Plan(1, rows, ())).wait().logprobs


def wanting(n: int | None, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, logprobs=n)


def test_nothing_is_told_of_tokens_when_nobody_asks() -> None:
    """Not even that nothing is."""
    assert told(row(), row(rid=2, block_ids=range(4, 8))) == []


@pytest.mark.parametrize("n", [0, 1, 2, 20])
def test_token_is_the_likeliest_when_it_is_greedy(n: int) -> None:
    """As many others as were asked for, each half as likely as the one before."""
    (token_id,) = step(fake(), row())
    plain, one = told(row(rid=2, block_ids=range(4, 8)), row(sampling=wanting(n)))
    assert plain is None and one is not None
    assert one.logprob == pytest.approx(math.log(0.5))
    assert one.top_ids[:1] == (token_id,)[:n] and len(set(one.top_ids)) == n
    assert one.top_logprobs == pytest.approx([math.log(0.5 ** (place + 1)) for place in range(n)])


@pytest.mark.parametrize("n", [0, 1, 3, 20])
def test_token_is_one_of_the_likely_when_it_is_drawn(n: int) -> None:
    """Not always the same; where it is among those that are told it has the same number there."""
    logprobs = set()
    for seed in range(16):
        (token_id,) = step(fake(), row(sampling=wanting(None, 1.0), seed=seed))
        (one,) = told(row(sampling=wanting(n, 1.0), seed=seed))
        assert one is not None and len(one.top_ids) == len(one.top_logprobs) == n
        assert list(one.top_logprobs) == sorted(one.top_logprobs, reverse=True)
        by_id = dict(zip(one.top_ids, one.top_logprobs, strict=True))
        assert by_id.get(token_id, one.logprob) == one.logprob
        logprobs.add(one.logprob)
    assert len(logprobs) > 1


def test_each_token_is_told_when_drafts_are_run_along() -> None:
    """One for each that is sampled."""
    assert [type(one) for one in told(row(drafts=(1, 2), sampling=wanting(1), block_ids=range(8)))] == [Logprobs] * 3
