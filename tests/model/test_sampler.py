"""The sampler agrees with a plain reference in float64, has the right statistics, and depends on nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.scheduler.plan import NO_TOKEN, Row
from sluiceway.model import sampler
from sluiceway.model.sampler import Sampler, uniform
from sluiceway.types import SamplingParams
from support.native import kernel_set

EOS = (2,)


@pytest.fixture(autouse=True, params=["numpy", "native"], scope="module")
def way_to_sample(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs with the kernels and with numpy."""
    with pytest.MonkeyPatch.context() as patch:
        kernels = kernel_set("plain") if request.param == "native" else None
        patch.setattr(sampler, "best_kernels", lambda: kernels)
        yield


def row(position: int = 5, *, n_prompt: int = 5, seed: int = 1, known: list[int] | None = None, **params: Any) -> Row:
    """A row whose next token has this `position`."""
    return Row(
        rid=seed,
        known=[0] * position if known is None else known,
        start=position - 1,
        n_tokens=1,
        block_ids=[0],
        samples=True,
        n_prompt=n_prompt,
        sampling=SamplingParams(**params),
        seed=seed,
    )


def sample(logits: Any, *rows: Row) -> list[int]:
    return Sampler(EOS).sample(torch.as_tensor(logits, dtype=torch.float32), rows)


def reference_weights(logits: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Compute the probabilities by the definitions, one step after the other."""
    p: npt.NDArray[np.float64] = np.exp((logits - logits.max()) / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    if 0 < params.top_k < p.size:
        p[p < np.sort(p)[-params.top_k]] = 0
    if params.top_p < 1:
        order = np.argsort(-p, kind="stable")
        sums = np.cumsum(p[order] / p.sum())
        n_kept = int(np.argmax(sums >= params.top_p)) + 1 if sums[-1] >= params.top_p else p.size
        p[order[n_kept:]] = 0
    p /= p.sum()
    return p


FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 7},
    "top_k of one": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 100_000},
    "top_p": {"top_p": 0.7},
    "tiny top_p": {"top_p": 1e-9},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("name", FILTERS)
def test_tokens_have_the_reference_probabilities(name: str) -> None:
    """4000 draws of seeds 0.. from 600 logits: none outside the support, frequencies within five deviations.

    And three draws more, for the rarest.
    """
    logits = np.random.default_rng(3).normal(0, 2, 600)
    n = 4000
    params = {"temperature": 1.0} | FILTERS[name]
    rows = [row(seed=seed, **params) for seed in range(n)]
    tokens = Counter(sample(np.tile(logits, (n, 1)), *rows))

    expected = reference_weights(logits, rows[0].sampling)
    assert all(expected[token] > 0 for token in tokens)
    for token, p in enumerate(expected):
        assert abs(tokens[token] - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 3


def test_random_numbers_of_positions_are_independent() -> None:
    """With one seed and 4000 positions, the numbers are uniform in 16 bins, and neighbours are not correlated."""
    numbers = uniform([7] * 4000, list(range(4000)))
    bins = np.bincount((numbers * 16).astype(int), minlength=16)
    assert np.abs(bins - 250).max() < 5 * np.sqrt(250)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.08
    assert 0 <= numbers.min() and numbers.max() < 1


def test_random_numbers_of_seeds_are_independent() -> None:
    """The seeds differ by one; the largest seed is among them."""
    numbers = uniform([*range(3999), 2**64 - 1], [5] * 4000)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.08
    assert abs(numbers.mean() - 0.5) < 0.03


@pytest.mark.parametrize("distance", [1, 2, 1 << 32, 0x9E3779B97F4A7C15])
def test_neighbouring_seeds_share_no_number_at_any_position(distance: int) -> None:
    """They share none at the same position or a few positions later: a seed is no place in one long sequence."""
    seeds, positions = range(50), range(200)
    own = uniform([seed for seed in seeds for _ in positions], [*positions] * len(seeds))
    others = uniform([seed + distance for seed in seeds for _ in positions], [*positions] * len(seeds))
    own_rows, other_rows = own.reshape(50, 200), others.reshape(50, 200)
    for shift in range(4):
        mine, theirs = own_rows[:, shift:].ravel(), other_rows[:, : 200 - shift].ravel()
        assert abs(np.corrcoef(mine, theirs)[0, 1]) < 0.05 and not (mine == theirs).any()


def test_a_token_is_the_same_alone_and_in_a_mixed_batch() -> None:
    """Rows of every kind are sampled alone, and together in both orders."""
    logits = np.random.default_rng(0).normal(0, 3, (9, 1000)).astype(np.float32)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        *({"temperature": 0.8} | FILTERS[name] for name in FILTERS if name not in ("none", "tiny top_p")),
    ]
    rows = [row(seed=i, **kind) for i, kind in enumerate(kinds)]
    together = sample(logits, *rows)
    assert sample(logits[::-1].copy(), *rows[::-1]) == together[::-1]
    assert [sample(logits[i : i + 1], rows[i])[0] for i in range(9)] == together


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 5e-324])
def test_the_largest_logit_is_taken_when_the_temperature_is_next_to_nothing(temperature: float) -> None:
    """The temperature goes down to the smallest float; of equal logits the first counts."""
    assert sample([[0.0, 3.0, 3.0, 1.0]], row(temperature=temperature)) == [1]


def test_a_small_temperature_is_no_overflow() -> None:
    """Logits of 80 are divided by 1e-5, and by 1e-4 with a second large logit."""
    assert sample([[80.0, -80.0, 79.0]], row(temperature=1e-5)) == [0]


PATHS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "presence_penalty": 0.1},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 1.0},
    FILTERS["all"],
]


@pytest.mark.parametrize(
    ("logits", "possible"),
    [
        ([np.nan, 1.0, 2.0, 0.0], {1, 2, 3}),
        ([2.0, np.nan, -np.inf, np.nan], {0}),
        ([np.inf, -np.inf, 0.0, np.nan], {0}),
        ([3e38, -3e38, 3e38, 0.0], {0, 2}),
    ],
)
@pytest.mark.parametrize("params", PATHS)
def test_nan_counts_as_minus_infinity(logits: list[float], possible: set[int], params: dict[str, Any]) -> None:
    """Greedy, greedy with penalties, sampled and filtered: one of the other tokens is chosen."""
    (token,) = sample([logits], row(**params))
    assert token in possible


@pytest.mark.parametrize("logits", [[np.nan] * 4, [-np.inf] * 4, [np.nan, -np.inf, np.nan, -np.inf]])
@pytest.mark.parametrize("params", PATHS)
def test_no_token_is_chosen_where_none_is_possible(logits: list[float], params: dict[str, Any]) -> None:
    """The other row of the batch gets its token."""
    assert sample([logits, [0.0, 0.0, 99.0, 0.0]], row(**params), row(seed=2)) == [NO_TOKEN, 2]


def test_nan_is_never_sampled_when_another_token_is_possible() -> None:
    """It counts as impossible."""
    assert sample([[np.nan, 1.0, np.nan]] * 20, *[row(seed=i) for i in range(20)]) == [1] * 20


def test_penalties_lower_the_logits_of_seen_tokens() -> None:
    """Repetition counts prompt and answer, and divides or multiplies by sign. The others count the answer only."""
    known = [0, 0, 1, 1, 1, 3]  # prompt: 0 0; generated: 1 1 1 3
    logits = [[4.0, 4.0, 3.9, -1.0]]
    assert sample(logits, row(6, n_prompt=2, known=known, temperature=0.0)) == [0]
    assert sample(logits, row(6, n_prompt=2, known=known, temperature=0.0, presence_penalty=0.05)) == [0]
    assert sample(
        [[4.0, 4.2, 3.9, 3.95]], row(6, n_prompt=2, known=known, temperature=0.0, frequency_penalty=0.08)
    ) == [0]
    assert sample(logits, row(6, n_prompt=2, known=known, temperature=0.0, repetition_penalty=1.1)) == [2]
    assert sample(
        [[-4.0, -4.0, -4.2, -5.0]], row(6, n_prompt=2, known=known, temperature=0.0, repetition_penalty=1.1)
    ) == [2]


def test_a_bias_forces_and_forbids() -> None:
    """It is added after the penalties. Ids that the model does not have are ignored."""
    assert sample([[1.0, 2.0, 3.0]], row(temperature=0.0, logit_bias=((0, 100.0), (999, 5.0)))) == [0]
    assert sample([[1.0, 2.0, 3.0]], row(temperature=1.0, logit_bias=((2, -100.0), (1, -100.0)))) == [0]


def test_end_tokens_are_banned_until_min_tokens_were_generated() -> None:
    """The end tokens of the model and of the request are banned, also when sampling; later they are allowed."""
    logits = [[1.0, 8.0, 9.0, 7.0]]
    params: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (1, 999)}
    for temperature in (0.0, 0.01):
        assert sample(logits, row(6, n_prompt=5, temperature=temperature, **params)) == [3]
        assert sample(logits, row(7, n_prompt=5, temperature=temperature, **params)) == [2]


def test_a_row_whose_every_token_is_banned_gets_one_all_the_same() -> None:
    """All tokens of the vocabulary are end tokens."""
    for temperature in (0.0, 1.0):
        (token,) = sample([[1.0, 2.0, 3.0]], row(temperature=temperature, min_tokens=9, stop_token_ids=(0, 1)))
        assert 0 <= token < 3


def test_counts_are_kept_only_for_penalties_and_until_forgotten() -> None:
    """Nothing is kept for greedy rows."""
    sampler = Sampler(EOS)
    logits = torch.zeros(2, 8)
    sampler.sample(logits, [row(seed=1, temperature=0.0), row(seed=2, frequency_penalty=0.5)])
    assert sampler.n_remembered == 1
    sampler.forget([1, 2, 3])
    assert sampler.n_remembered == 0


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
        {"temperature": 0.9, "presence_penalty": 2.0, "top_k": 5},
        {"temperature": 0.0, "min_tokens": 8, "logit_bias": ((EOS[0], 100.0),)},
    ],
)
def test_a_row_with_drafts_gets_what_it_would_get_one_by_one(params: dict[str, Any]) -> None:
    """Each token depends on its position and on the tokens before it, known or drafts. A second call gives the same."""
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    known, drafts = [3, 4, 5, 3, 6, 7], (3, 8, 8)
    rows = row(6, known=known, **params).with_drafts(drafts).samplings()
    one_by_one = [
        sample(logits[n : n + 1].clone(), row(6 + n, known=[*known, *drafts[:n]], **params))[0] for n in range(4)
    ]
    sampler = Sampler(EOS)
    for _ in range(2):
        assert sampler.sample(logits.clone(), rows) == one_by_one
    if params.get("min_tokens"):
        assert [token == EOS[0] for token in one_by_one] == [False] * 4


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 0.25}, {"min_p": 1.0}])
def test_filters_keep_tokens_of_equal_weight_together(params: dict[str, Any]) -> None:
    """The exponential in float32 gives both logits the weight 1, though they differ."""
    rows = [row(seed=seed, **params) for seed in range(40)]
    assert set(sample([[-6.75e-25, 0.0, -1.0]] * len(rows), *rows)) == {0, 1}


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    values=st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=700),
    temperature=st.floats(1e-5, 5),
    top_p=st.floats(1e-6, 1),
    top_k=st.integers(0, 800),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_sampled_token_passes_every_filter(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    """With any settings it is among the top_k, not below min_p, and the likelier tokens do not reach top_p together.

    A token is likelier if float32 can express the difference of the weights.
    """
    params: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    (token,) = sample([values], row(seed=seed, **params))
    logits = np.array(values)
    weights = np.exp((logits - logits.max()) / temperature)
    assert weights[token] >= min_p * (1 - 1e-4)
    is_likelier = weights > weights[token] * (1 + 1e-6)
    if top_k:
        assert is_likelier.sum() < top_k
    assert weights[is_likelier].sum() <= top_p * weights.sum() * (1 + 1e-4)
