"""What the engine may expect of every runner."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from sluiceway.engine.runner import Runner
from sluiceway.types import Logprobs, SamplingParams, TokenId
from support.runners import RUNNERS, VOCAB_SIZE, Driver, Sequence

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=1.0, top_p=0.9)
N_TOKENS = 6

MakeRunner = Callable[[], Runner]
pytestmark = [
    pytest.mark.parametrize("make_runner", RUNNERS.values(), ids=RUNNERS.keys()),
    pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"]),
]


def sequence(rid: int, sampling: SamplingParams, n_prompt: int | None = None) -> Sequence:
    """Different prompts, lengths and seeds; the same for the same rid."""
    n_prompt = 3 + rid % 7 if n_prompt is None else n_prompt
    return Sequence(rid, [(rid * 37 + i * i * 11) % VOCAB_SIZE for i in range(n_prompt)], sampling, seed=rid * 101)


def alone(make_runner: MakeRunner, rid: int, sampling: SamplingParams, n_prompt: int | None = None) -> list[TokenId]:
    driver, one = Driver(make_runner()), sequence(rid, sampling, n_prompt)
    for _ in range(N_TOKENS):
        driver.step(one)
    return one.answer


def test_answer_is_the_same_when_it_is_generated_again(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """A new runner over the same model generates it."""
    assert alone(make_runner, 5, sampling) == alone(make_runner, 5, sampling)


def test_answer_is_the_same_in_a_batch(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """Rows do not interact, and results come in the order of the rows."""
    driver = Driver(make_runner())
    batch = [sequence(rid, sampling) for rid in range(6)]
    for _ in range(N_TOKENS):
        driver.step(*batch)
    assert [one.answer for one in batch] == [alone(make_runner, rid, sampling) for rid in range(6)]


def test_answer_is_the_same_when_neighbours_come_and_go(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """The row has another place in each batch."""
    driver, one, others = Driver(make_runner()), sequence(5, sampling), [sequence(rid, sampling) for rid in range(4)]
    for step in range(N_TOKENS):
        driver.step(*others[: step % 4], one, *others[step % 4 :][:2])
    assert one.answer == alone(make_runner, 5, sampling)


@pytest.mark.parametrize("n_chunk", [1, 3, 4, 5, 16])
def test_answer_is_the_same_when_the_prompt_comes_in_chunks(
    make_runner: MakeRunner, sampling: SamplingParams, n_chunk: int
) -> None:
    """Chunks end inside blocks, on their borders, and beyond."""
    driver, one = Driver(make_runner()), sequence(2, sampling, n_prompt=21)
    while len(one.answer) < N_TOKENS:
        driver.step(one, max_tokens=n_chunk)
    assert one.answer == alone(make_runner, 2, sampling, n_prompt=21)


def test_chunks_and_tokens_may_share_a_step(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """The result has only the rows that sample, in their order."""
    driver = Driver(make_runner())
    long, short, other = sequence(1, sampling, 13), sequence(2, sampling), sequence(3, sampling)
    driver.step(short, other)
    while len(long.answer) < N_TOKENS:
        if len(other.answer) < N_TOKENS:
            driver.step(other, long, short, max_tokens=2)
        else:
            driver.step(long, max_tokens=2)
    assert long.answer == alone(make_runner, 1, sampling, 13)
    assert short.answer[:N_TOKENS] == alone(make_runner, 2, sampling)
    assert other.answer[:N_TOKENS] == alone(make_runner, 3, sampling)


@pytest.mark.parametrize("n_before", range(N_TOKENS))
def test_answer_is_the_same_when_all_is_computed_again(
    make_runner: MakeRunner, sampling: SamplingParams, n_before: int
) -> None:
    """One row computes the prompt and the answer again, in other blocks: another sequence has used the first ones."""
    driver, one, other = Driver(make_runner()), sequence(4, sampling), sequence(9, sampling)
    for _ in range(n_before):
        driver.step(one)
    driver.forget(one)
    driver.step(other)
    for _ in range(N_TOKENS - n_before):
        driver.step(one, other)
    assert one.answer == alone(make_runner, 4, sampling)


def test_blocks_may_be_used_by_others_when_a_sequence_is_retired(
    make_runner: MakeRunner, sampling: SamplingParams
) -> None:
    """The old sequence has no effect. The retired ids may contain ids that the runner never saw."""
    driver = Driver(make_runner())
    driver.finish(sequence(77, sampling))
    for rid in range(12):
        one = sequence(rid, sampling)
        for _ in range(N_TOKENS):
            driver.step(one)
        assert one.answer == alone(make_runner, rid, sampling)
        driver.finish(one)


@pytest.mark.parametrize("n_prompt", [3, 14, 16, 30])
def test_answer_is_the_same_with_drafts(make_runner: MakeRunner, sampling: SamplingParams, n_prompt: int) -> None:
    """Drafts are right, wrong, or right and then wrong. They cross borders of blocks, in a batch with other rows."""
    answer = alone(make_runner, 7, sampling, n_prompt)
    for n_right in range(N_TOKENS):
        driver, one, other = Driver(make_runner()), sequence(7, sampling, n_prompt), sequence(2, sampling)
        driver.step(one, other, max_tokens=20)
        while len(one.answer) < N_TOKENS:
            n = len(one.answer)
            right = answer[n : n + n_right]
            one.drafts = [*right, *((token_id + 1) % VOCAB_SIZE for token_id in answer[n + n_right :][:2])]
            driver.step(other, one)
            assert len(one.answer) >= min(N_TOKENS, n + 1 + n_right), "right drafts are accepted"
        assert one.answer[:N_TOKENS] == answer
        assert other.answer[:N_TOKENS] == alone(make_runner, 2, sampling)[: len(other.answer)]


def test_two_steps_may_be_in_flight(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """The steps have different sequences, and are waited for in the order of their launch."""
    runner = make_runner()
    driver = Driver(runner)
    a, b = sequence(1, sampling), sequence(2, sampling)
    plans = [driver.plan(a), driver.plan(b)]
    steps = [runner.launch(plan) for plan in plans]
    results = [step.wait() for step in steps]
    assert [result.step_id for result in results] == [1, 2]
    assert [list(result.token_ids) for result in results] == [
        alone(make_runner, 1, sampling)[:1],
        alone(make_runner, 2, sampling)[:1],
    ]


def test_tokens_are_plain_numbers_of_the_vocabulary(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """Messages contain them unchanged."""
    for token_id in alone(make_runner, 3, sampling):
        assert type(token_id) is int and token_id >= 0


def wanting(sampling: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(sampling, logprobs=4)


def logprobs_alone(make_runner: MakeRunner, rid: int, sampling: SamplingParams) -> list[Logprobs]:
    driver, one = Driver(make_runner()), sequence(rid, wanting(sampling))
    for _ in range(N_TOKENS):
        driver.step(one)
    return one.logprobs


def same(found: list[Logprobs], wanted: list[Logprobs]) -> bool:
    """True when the ids are equal, and the numbers as close as float32 is with other chunks."""
    numbers = [[n for one in logprobs for n in (one.logprob, *one.top_logprobs)] for logprobs in (found, wanted)]
    return [one.top_ids for one in found] == [one.top_ids for one in wanted] and numbers[0] == pytest.approx(
        numbers[1], abs=1e-4
    )


def test_logprobs_are_in_order(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """The likeliest token is first, and no logprob is above zero. A token has one logprob, in the list and alone."""
    driver, one = Driver(make_runner()), sequence(5, wanting(sampling))
    for _ in range(N_TOKENS):
        driver.step(one)
    assert len(one.logprobs) == N_TOKENS
    for token_id, token in zip(one.answer, one.logprobs, strict=True):
        assert len(set(token.top_ids)) == len(token.top_logprobs) == 4
        assert list(token.top_logprobs) == sorted(token.top_logprobs, reverse=True) and token.top_logprobs[0] <= 0
        assert dict(zip(token.top_ids, token.top_logprobs, strict=True)).get(token_id, token.logprob) == token.logprob
        assert sampling.temperature or token_id == token.top_ids[0]


def test_tokens_are_the_same_with_logprobs(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """Logprobs change no token."""
    driver, one = Driver(make_runner()), sequence(5, wanting(sampling))
    for _ in range(N_TOKENS):
        driver.step(one)
    assert one.answer == alone(make_runner, 5, sampling)


def test_logprobs_are_the_same_in_a_batch(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """Half of the rows want no logprobs."""
    driver = Driver(make_runner())
    batch = [sequence(rid, wanting(sampling) if rid % 2 else sampling) for rid in range(6)]
    for _ in range(N_TOKENS):
        driver.step(*batch)
    for rid, one in enumerate(batch):
        assert same(one.logprobs, logprobs_alone(make_runner, rid, sampling) if rid % 2 else [])


@pytest.mark.parametrize("n_right", range(N_TOKENS))
def test_logprobs_are_the_same_with_drafts(make_runner: MakeRunner, sampling: SamplingParams, n_right: int) -> None:
    """The accepted drafts and the token after them have logprobs."""
    answer = alone(make_runner, 7, sampling)
    driver, one = Driver(make_runner()), sequence(7, wanting(sampling))
    while len(one.answer) < N_TOKENS:
        n = len(one.answer)
        one.drafts = [
            *answer[n : n + n_right],
            *((token_id + 1) % VOCAB_SIZE for token_id in answer[n + n_right :][:1]),
        ]
        driver.step(one)
    assert same(one.logprobs[:N_TOKENS], logprobs_alone(make_runner, 7, sampling))


def test_logprobs_are_the_same_when_all_is_computed_again(make_runner: MakeRunner, sampling: SamplingParams) -> None:
    """Later tokens have logprobs. Those of earlier tokens do not come again."""
    driver, one = Driver(make_runner()), sequence(4, wanting(sampling))
    for n in range(N_TOKENS):
        if n == N_TOKENS // 2:
            driver.forget(one)
        driver.step(one)
    assert same(one.logprobs, logprobs_alone(make_runner, 4, sampling))
