"""The fake runner: its text, and the plans that it refuses."""

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
    """Return a fake runner with four tokens per block."""
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
    """Return a row up to the end of the known tokens and the drafts, or of `n_tokens` known tokens."""
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
    """Five letters and a space, in printable ASCII."""
    text = bytes(generate(fake(), 30)).decode("ascii")
    words = text.split(" ")
    assert [len(word) for word in words] == [5, 5, 5, 5, 5, 0]
    assert len(set(words)) > 3


def test_same_input_gives_the_same_text() -> None:
    assert generate(fake(), 20, WARM, seed=3) == generate(fake(), 20, WARM, seed=3)


def test_text_depends_on_the_seed_unless_it_is_greedy() -> None:
    assert generate(fake(), 20, WARM, seed=3) != generate(fake(), 20, WARM, seed=4)
    assert generate(fake(), 20, GREEDY, seed=3) == generate(fake(), 20, GREEDY, seed=4)


@pytest.mark.parametrize("position", range(len(PROMPT)))
def test_next_token_depends_on_every_known_token(position: int) -> None:
    """Tested over several seeds, because there are few letters."""
    changed = [*PROMPT[:position], PROMPT[position] + 1, *PROMPT[position + 1 :]]
    pairs = [
        (step(fake(), row(sampling=WARM, seed=seed)), step(fake(), row(changed, sampling=WARM, seed=seed)))
        for seed in range(8)
    ]
    assert any(before != after for before, after in pairs)


def test_every_nth_token_is_the_end_token() -> None:
    answer = generate(fake(eos_every=5), 12)
    assert [index for index, token_id in enumerate(answer) if token_id == EOS] == [4, 9]


def test_end_token_does_not_come_before_min_tokens() -> None:
    answer = generate(fake(eos_every=5), 12, SamplingParams(temperature=0.0, min_tokens=5))
    assert [index for index, token_id in enumerate(answer) if token_id == EOS] == [9]


def test_chunk_before_the_end_of_the_prompt_samples_nothing() -> None:
    """The whole prompt gives the same token as its chunks."""
    runner = fake()
    assert step(runner, row(n_tokens=5)) == []
    assert step(runner, row(start=5, n_tokens=4)) == []
    assert step(runner, row(start=9)) == step(fake(), row())


def test_step_takes_its_time_in_wait_and_not_in_launch() -> None:
    slept: list[float] = []
    runner = FakeRunner(step_s=0.5, sleep=slept.append)
    launched = runner.launch(Plan(1, (row(),), ()))
    assert slept == []
    launched.wait()
    assert slept == [0.5]


@pytest.mark.parametrize("step_s", [0.0, 0.5])
def test_step_takes_no_time_without_a_duration_or_a_sleep(step_s: float) -> None:
    slept: list[float] = []
    runner = FakeRunner(step_s=step_s, sleep=None if step_s else slept.append)
    assert len(step(runner, row())) == 1
    assert slept == []


def test_retired_sequence_is_forgotten_with_the_next_plan() -> None:
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
def test_launch_raises_when_a_row_is_invalid(bad: Row, sentence: str) -> None:
    """Its positions are beyond the known tokens, or its blocks too few or unknown."""
    with pytest.raises(InvariantError, match=sentence):
        fake().launch(Plan(1, (bad,), ()))


def test_launch_takes_any_block_when_the_cache_has_no_size() -> None:
    """As the fake server uses it."""
    assert len(step(fake(n_blocks=None), row(block_ids=(10**6, 1, 2, 3)))) == 1


def test_launch_raises_when_two_rows_are_of_one_sequence() -> None:
    with pytest.raises(InvariantError, match="two rows"):
        fake().launch(Plan(1, (row(), row(block_ids=range(4, 8))), ()))


def test_launch_raises_when_two_rows_share_a_block() -> None:
    with pytest.raises(InvariantError, match="block 3 belongs to sequences 1 and 2"):
        fake().launch(Plan(1, (row(rid=1), row(rid=2, block_ids=range(3, 7))), ()))


def test_launch_raises_when_a_block_is_used_by_a_step_in_flight() -> None:
    """The block is free for others after `wait`."""
    runner = fake()
    first = runner.launch(Plan(1, (row(rid=1),), ()))
    with pytest.raises(InvariantError, match="belongs to sequences 1 and 2"):
        runner.launch(Plan(2, (row(rid=2),), ()))
    first.wait()
    assert len(step(runner, row(rid=2), step_id=2)) == 1


def test_wait_raises_when_steps_are_out_of_order() -> None:
    """`wait` is called once for each step, the oldest first."""
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
    """Five are computed, and the row starts at six, or at eight with a block that was never written."""
    for start in (6, 8):
        runner = fake()
        step(runner, row(n_tokens=5))
        with pytest.raises(InvariantError, match="does not hold its tokens"):
            step(runner, row(start=start), step_id=2)


def test_wait_raises_when_positions_are_computed_twice() -> None:
    """Five are computed, and the row starts at three."""
    runner = fake()
    step(runner, row(n_tokens=5))
    with pytest.raises(InvariantError, match="does not hold its tokens"):
        step(runner, row(start=3, n_tokens=5), step_id=2)


def test_wait_raises_when_another_sequence_has_written_the_block() -> None:
    """Even if it wrote the same tokens at the same place, after different ones."""
    runner = fake()
    step(runner, row(rid=1))
    other = [1, 2, 3, 4, *PROMPT[4:]]
    step(runner, row(other, rid=2, block_ids=(8, 1, 9, 10)), step_id=2)
    with pytest.raises(InvariantError, match="sequence 1: block 1 does not hold its tokens"):
        step(runner, row([*PROMPT, 1], len(PROMPT), rid=1), step_id=3)


def test_sequence_may_read_blocks_of_another_that_hold_its_tokens() -> None:
    """As with a shared prefix. The content of a block counts, not who wrote it."""
    runner = fake()
    step(runner, row(rid=1))
    longer = [*PROMPT, 1]
    assert step(runner, row(longer, len(PROMPT), rid=2), step_id=2) == step(fake(), row(longer, rid=2))


def test_sequence_retired_in_flight_stays_forgotten() -> None:
    runner = fake()
    first = runner.launch(Plan(1, (row(rid=1),), ()))
    second = runner.launch(Plan(2, (row(rid=2, block_ids=range(4, 8)),), (1,)))
    first.wait()
    second.wait()
    assert runner.sequences.keys() == {2}


def test_sequence_may_start_again_in_any_blocks() -> None:
    runner = fake()
    first = step(runner, row())
    assert step(runner, row(block_ids=(3, 2, 1, 0)), step_id=2) == first


def test_text_with_a_period_repeats_itself() -> None:
    """Four of each five tokens repeat, also with a seed. The fifth differs now and then."""
    for sampling in (GREEDY, WARM):
        answer = generate(fake(period=5), 40, sampling, seed=3)
        rounds = [answer[place : place + 5] for place in range(0, 40, 5)]
        assert len({tuple(one[:4]) for one in rounds}) == 1
        assert len({one[4] for one in rounds}) > 1


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "seeded"])
def test_a_token_is_sampled_after_each_draft(sampling: SamplingParams) -> None:
    """Right drafts give the same tokens as steps without drafts."""
    answer = generate(fake(), 6, sampling, seed=4)
    runner = fake()
    step(runner, row(sampling=sampling, seed=4))
    drafted = row([*PROMPT, answer[0]], len(PROMPT), drafts=answer[1:5], sampling=sampling, seed=4)
    assert step(runner, drafted, step_id=2) == answer[1:]


@pytest.mark.parametrize("n_right", range(5))
def test_sequence_continues_after_its_last_accepted_draft(n_right: int) -> None:
    """Wrong drafts leave nothing behind in any block: the prompt has 16 tokens, and a block four."""
    answer = generate(fake(), 12)
    runner = fake()
    step(runner, row())
    wrong = [token_id + 1 for token_id in answer[1 + n_right :]]
    drafts = [*answer[1 : 1 + n_right], *wrong][:6]
    sampled = step(runner, row([*PROMPT, answer[0]], 16, drafts=drafts), step_id=2)
    assert len(sampled) == 7 and sampled[: n_right + 1] == answer[1 : n_right + 2]
    known = [*PROMPT, *answer[: n_right + 2]]
    assert step(runner, row(known, len(known) - 1), step_id=3) == [answer[n_right + 2]]


def test_wait_raises_when_a_wrong_draft_counts_as_computed() -> None:
    answer = generate(fake(), 4)
    runner = fake()
    step(runner, row())
    step(runner, row([*PROMPT, answer[0]], 16, drafts=[answer[1] + 1]), step_id=2)
    with pytest.raises(InvariantError, match="does not hold its tokens"):
        step(runner, row([*PROMPT, *answer[:3]], 18), step_id=3)


def test_wait_raises_when_wrong_drafts_overwrote_a_block_of_another() -> None:
    """The block no longer holds the tokens of any sequence."""
    runner = fake()
    step(runner, row(rid=1, n_tokens=8))
    answer = generate(fake(), 4)
    blocks = (8, 9, 10, 11, 12, 1)
    step(runner, row(rid=2, block_ids=blocks), step_id=2)
    wrong = [token_id + 1 for token_id in answer[1:]] * 2
    step(runner, row([*PROMPT, answer[0]], 16, rid=2, drafts=wrong[:5], block_ids=blocks), step_id=3)
    with pytest.raises(InvariantError, match="sequence 1: block 1 does not hold its tokens"):
        step(runner, row(rid=1, start=8), step_id=4)


def logprobs_of(*rows: Row) -> Sequence[Logprobs | None]:
    return fake().launch(Plan(1, rows, ())).wait().logprobs


def wanting(n: int | None, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, logprobs=n)


def test_no_logprobs_without_a_request_for_them() -> None:
    assert logprobs_of(row(), row(rid=2, block_ids=range(4, 8))) == []


@pytest.mark.parametrize("n", [0, 1, 2, 20])
def test_greedy_token_is_the_likeliest(n: int) -> None:
    """The logprobs list as many tokens as requested, each half as likely as the one before."""
    (token_id,) = step(fake(), row())
    plain, one = logprobs_of(row(rid=2, block_ids=range(4, 8)), row(sampling=wanting(n)))
    assert plain is None and one is not None
    assert one.logprob == pytest.approx(math.log(0.5))
    assert one.top_ids[:1] == (token_id,)[:n] and len(set(one.top_ids)) == n
    assert one.top_logprobs == pytest.approx([math.log(0.5 ** (place + 1)) for place in range(n)])


@pytest.mark.parametrize("n", [0, 1, 3, 20])
def test_sampled_token_is_one_of_the_likely(n: int) -> None:
    """Not always the same. Its logprob is the same in the list, if it is listed."""
    logprobs = set()
    for seed in range(16):
        (token_id,) = step(fake(), row(sampling=wanting(None, 1.0), seed=seed))
        (one,) = logprobs_of(row(sampling=wanting(n, 1.0), seed=seed))
        assert one is not None and len(one.top_ids) == len(one.top_logprobs) == n
        assert list(one.top_logprobs) == sorted(one.top_logprobs, reverse=True)
        by_id = dict(zip(one.top_ids, one.top_logprobs, strict=True))
        assert by_id.get(token_id, one.logprob) == one.logprob
        logprobs.add(one.logprob)
    assert len(logprobs) > 1


def test_each_token_after_drafts_has_logprobs() -> None:
    assert [type(one) for one in logprobs_of(row(drafts=(1, 2), sampling=wanting(1), block_ids=range(8)))] == [
        Logprobs
    ] * 3
