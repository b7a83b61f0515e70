"""The real runner: plans in, tokens out, and what it keeps between steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.model.load import LoadedModel
from sluiceway.model.runner import TorchRunner
from sluiceway.types import Logprobs, SamplingParams
from support.tiny_models import GREEDY, loaded, reference_logits, reference_model, row

PROMPT = [(3 * i * i + i) % 160 for i in range(40)]
REFERENCE = reference_model()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(REFERENCE, tmp_path_factory.mktemp("model"))


def run(runner: TorchRunner, *rows: Row, step_id: int = 1, retired: tuple[int, ...] = ()) -> list[int]:
    result = runner.launch(Plan(step_id, rows, retired)).wait()
    assert result.step_id == step_id
    return list(result.token_ids)


def test_greedy_tokens_are_the_largest_logits(model: LoadedModel) -> None:
    """Only rows that sample have a token, in the order of the rows."""
    runner = TorchRunner(model, 16, threads=1)
    tokens = run(runner, row(PROMPT, 0, 30, 0), row(PROMPT, 0, 9, 4, samples=False), row(PROMPT[:12], 0, 12, 8))
    assert tokens == [int(reference_logits(REFERENCE, PROMPT[:n])[-1].argmax()) for n in (30, 12)]


def logprobs_of_rows(runner: TorchRunner, *rows: Row) -> list[Logprobs | None]:
    return list(runner.launch(Plan(1, rows, ())).wait().logprobs)


def test_no_token_has_logprobs_when_no_row_wants_them(model: LoadedModel) -> None:
    """The result has no list of empty entries either."""
    assert logprobs_of_rows(TorchRunner(model, 16, threads=1), row(PROMPT, 0, 30, 0)) == []


BIASED = SamplingParams(temperature=0.0, logprobs=3, logit_bias=((5, 90.0),), presence_penalty=1.0)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(temperature=0.0, logprobs=3), SamplingParams(temperature=1.7, top_k=4, logprobs=3), BIASED],
    ids=["greedy", "drawn", "biased"],
)
def test_logprobs_are_computed_from_unchanged_logits(model: LoadedModel, sampling: SamplingParams) -> None:
    """The sampler may change them to choose the token. Other rows of the batch want no logprobs, and get none."""
    runner = TorchRunner(model, 16, threads=1)
    drawn = SamplingParams(temperature=1.0)
    rows = (
        row(PROMPT[:12], 0, 12, 0, sampling=drawn),
        row(PROMPT, 0, 30, 1, rid=1, sampling=sampling),
        row(PROMPT[:9], 0, 9, 3, rid=2),
    )
    result = runner.launch(Plan(1, rows, ())).wait()
    exact = reference_logits(REFERENCE, PROMPT[:30])[-1].double().log_softmax(-1)
    before, found, after = result.logprobs
    assert before is None and found is not None and after is None
    assert found.logprob == pytest.approx(float(exact[result.token_ids[1]]), abs=1e-4)
    assert list(found.top_ids) == exact.topk(3).indices.tolist()
    assert found.top_logprobs == pytest.approx(exact.topk(3).values.tolist(), abs=1e-4)
    without = [replace(one, sampling=replace(one.sampling, logprobs=None)) for one in rows]
    assert run(TorchRunner(model, 16, threads=1), *without) == list(result.token_ids)


def test_a_plan_without_rows_has_no_tokens(model: LoadedModel) -> None:
    """It may still have ids to forget."""
    assert run(TorchRunner(model, 4, threads=1), step_id=9, retired=(5,)) == []


def test_a_plan_in_which_no_row_samples_has_no_tokens(model: LoadedModel) -> None:
    """The plan has a chunk of a prompt."""
    assert run(TorchRunner(model, 4, threads=1), row(PROMPT, 0, 9, 0, samples=False)) == []


def test_counts_of_a_sequence_are_forgotten_when_it_retires(model: LoadedModel) -> None:
    """Only the counts for penalties are kept."""
    runner = TorchRunner(model, 16, threads=1)
    penalised = SamplingParams(temperature=0.0, presence_penalty=0.5)
    run(runner, *[row(PROMPT[:5], 0, 5, rid, rid=rid, sampling=penalised) for rid in range(4)])
    run(runner, row(PROMPT[:5], 0, 5, 9, rid=9, sampling=GREEDY), retired=(0, 1, 77))
    assert runner.n_remembered == 2


def test_warming_up_changes_no_answer(model: LoadedModel) -> None:
    """The cache may have fewer blocks than the warm-up has rows."""
    runner, warm = TorchRunner(model, 3, threads=1), TorchRunner(model, 3, threads=1)
    warm.warm_up()
    assert run(warm, row(PROMPT, 0, 40, 0)) == run(runner, row(PROMPT, 0, 40, 0))
    assert warm.n_remembered == 0


def test_threads_are_those_asked_for_or_all_cores(model: LoadedModel) -> None:
    """The number is a setting of the whole process."""
    before = torch.get_num_threads()
    try:
        TorchRunner(model, 1, threads=3)
        assert torch.get_num_threads() == 3
        TorchRunner(model, 1)
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))
    finally:
        torch.set_num_threads(before)


def test_the_size_of_the_cache_is_known(model: LoadedModel) -> None:
    """It is known before the cache is used."""
    assert TorchRunner(model, 7, threads=1).cache_bytes == model.config.kv_token_elements * 7 * 16 * 4


def test_the_runner_works_after_its_files_are_deleted(tmp_path: Path) -> None:
    """Weights in the dtype of the files stay mapped, even if the files are deleted."""
    gone = loaded(REFERENCE, tmp_path / "m")
    for file in (tmp_path / "m").iterdir():
        file.unlink()
    assert run(TorchRunner(gone, 16, threads=1), row(PROMPT, 0, 30, 0))


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(temperature=0.8), SamplingParams(temperature=0.0, frequency_penalty=0.5)],
    ids=["greedy", "seeded", "penalised"],
)
def test_a_token_is_sampled_after_each_draft(model: LoadedModel, sampling: SamplingParams) -> None:
    """The tokens are those that come without drafts, also after wrong drafts in the step before."""
    known = list(PROMPT)
    runner = TorchRunner(model, 16, threads=1)
    for start in (0, *range(40, 46)):
        known += run(runner, row(known, start, len(known) - start, 0, n_prompt=40, sampling=sampling))
    again = TorchRunner(model, 16, threads=1)
    run(again, row(PROMPT, 0, 40, 0, sampling=sampling))
    for drafts in ([known[41] ^ 1, known[42]], known[41:46]):
        drafted = row(known[:41], 40, 1, 0, n_prompt=40, sampling=sampling, drafts=drafts)
        *sampled, others = run(again, drafted, row(PROMPT, 0, 9, 8, rid=1))
        assert len(sampled) == len(drafts) + 1 and sampled[0] == known[41]
        assert others == run(TorchRunner(model, 16, threads=1), row(PROMPT, 0, 9, 8))[0]
    assert sampled == known[41:47]
