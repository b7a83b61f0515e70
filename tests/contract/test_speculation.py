"""Speculation changes when tokens come, and never which tokens: scheduler and real runner together, in every dtype."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from sluiceway.config import Dtype, EngineConfig
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.engine.scheduler.sequence import Submission
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.load import LoadedModel
from sluiceway.model.runner import TorchRunner
from sluiceway.types import EngineStats, Rid, SamplingParams, Speculation, TokenId
from support.native import SETS, chosen
from support.tiny_models import loaded, reference_model

N_BLOCKS = 96
N_TOKENS = 48
VOCAB_SIZE = 160
EOS = 1

GREEDY = SamplingParams(temperature=0.0, max_tokens=N_TOKENS, ignore_eos=True)
FEW_LETTERS = tuple((token_id, 25.0) for token_id in (5, 6, 7))
"""A text of three letters repeats itself by chance, whatever else decides."""

replaced = functools.partial(msgspec.structs.replace, GREEDY)
SETTINGS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "seeded": replaced(temperature=0.8, logit_bias=FEW_LETTERS),
    "filtered": replaced(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, logit_bias=FEW_LETTERS),
    "biased": replaced(logit_bias=(*FEW_LETTERS, (8, 24.0), (9, -100.0))),
    "penalised": replaced(frequency_penalty=0.1, presence_penalty=0.5, repetition_penalty=1.2, logit_bias=FEW_LETTERS),
    "seeded and penalised": replaced(temperature=0.5, frequency_penalty=-0.1, logit_bias=FEW_LETTERS),
    "ending": replaced(temperature=0.9, ignore_eos=False, min_tokens=9, logit_bias=(*FEW_LETTERS, (EOS, 22.0))),
}


def load(dtype: Dtype) -> LoadedModel:
    """Load random weights, with which the text sometimes repeats itself."""
    with tempfile.TemporaryDirectory() as directory:
        return loaded(reference_model(vocab_size=VOCAB_SIZE), Path(directory), dtype)


@functools.cache
def model(dtype: Dtype) -> LoadedModel:
    """The native kernels give this in bfloat16 and int8; torch's own products in bfloat16 do not."""
    if dtype != "float32" and best_kernels() is None:
        pytest.skip("without native kernels only float32 has this")
    return load(dtype)


def prompts() -> list[list[TokenId]]:
    """Some prompts repeat themselves, others do not."""
    draw = random.Random(5)
    words = [[draw.randrange(2, VOCAB_SIZE) for _ in range(5)] for _ in range(4)]
    lists = [[token for _ in range(3) for word in words[: 1 + n] for token in word] for n in range(3)]
    return [*lists, *([draw.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 15, 16, 40))]


def submissions(sampling: SamplingParams, speculation: Speculation) -> list[Submission]:
    said = msgspec.structs.replace(sampling, speculation=speculation)
    return [Submission(rid, prompt, said, seed=rid * 101) for rid, prompt in enumerate(prompts())]


def answers(
    model: LoadedModel, batch: Sequence[Submission], *, n_blocks: int = N_BLOCKS
) -> tuple[dict[Rid, list[TokenId]], EngineStats]:
    """Run all sequences together. Returns their answers, and the engine's counters."""
    config = EngineConfig(
        n_blocks=n_blocks, max_model_len=256, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), max_step_tokens=64
    )
    scheduler, runner = Scheduler(config), TorchRunner(model, n_blocks, threads=1)
    for submission in batch:
        scheduler.submit([submission])
    token_ids: dict[Rid, list[TokenId]] = {}
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(plan, runner.launch(plan).wait())
        outputs = scheduler.drain()
        for rid, token_id in zip(outputs.rids, outputs.token_ids, strict=True):
            token_ids.setdefault(rid, []).append(token_id)
    scheduler.check()
    assert scheduler.is_empty
    return token_ids, scheduler.stats()


def alone(model: LoadedModel, batch: Sequence[Submission]) -> dict[Rid, list[TokenId]]:
    return {one.rid: answers(model, [one])[0][one.rid] for one in batch}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_tokens_are_those_without_drafts(dtype: Dtype, name: str) -> None:
    """The sequences run alone, and all of them in one batch."""
    without = alone(model(dtype), submissions(SETTINGS[name], "off"))
    drafted = submissions(SETTINGS[name], "ngram")
    assert alone(model(dtype), drafted) == without
    together, stats = answers(model(dtype), drafted)
    assert together == without
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total > 0, "some were right and some were wrong"


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kernels", SETS)
def test_tokens_are_those_without_drafts_in_every_set_of_kernels(
    dtype: Dtype, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above uses the best kernel set of the machine only."""
    with chosen(monkeypatch, kernels):
        one = load(dtype)
        without = alone(one, submissions(SETTINGS["seeded"], "off"))
        assert answers(one, submissions(SETTINGS["seeded"], "ngram"))[0] == without


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_tokens_are_those_without_drafts_when_blocks_are_few(dtype: Dtype) -> None:
    """Sequences are preempted, and computed again."""
    drafted = submissions(GREEDY, "ngram")
    in_batch, stats = answers(model(dtype), drafted, n_blocks=16)
    assert stats.preempted_total > 0
    assert in_batch == alone(model(dtype), submissions(GREEDY, "off"))
