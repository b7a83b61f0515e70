"""The runners that the contract tests check, and a driver that runs sequences on them without a scheduler.

To test another runner, add a function to `RUNNERS` that makes it. All runners have the same model, `N_BLOCKS` blocks of
`BLOCK_TOKENS` tokens, and a vocabulary of at least `VOCAB_SIZE` tokens.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sluiceway.config import BLOCK_TOKENS, Dtype
from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.runner import Runner
from sluiceway.engine.scheduler.blocks import BlockPool, blocks_for
from sluiceway.engine.scheduler.drafts import count_accepted
from sluiceway.engine.scheduler.plan import Plan, Row
from sluiceway.model.load import LoadedModel
from sluiceway.model.runner import TorchRunner
from sluiceway.types import BlockId, Logprobs, Rid, SamplingParams, TokenId
from support.native import SETS, chosen
from support.tiny_models import loaded, reference_model

N_BLOCKS = 64
VOCAB_SIZE = 128


@functools.cache
def tiny_model(dtype: Dtype = "float32", kernels: str | None = None) -> LoadedModel:
    """A model with random weights. `kernels` names a kernel set; the test is skipped if the processor cannot run it."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if kernels is None:
            return loaded(reference_model(vocab_size=VOCAB_SIZE), Path(directory), dtype)
        with chosen(patch, kernels):
            return loaded(reference_model(vocab_size=VOCAB_SIZE), Path(directory), dtype)


def native_runner(dtype: Dtype, kernels: str) -> Runner:
    return TorchRunner(tiny_model(dtype, kernels), N_BLOCKS, threads=1)


RUNNERS: dict[str, Callable[[], Runner]] = {
    "fake": lambda: FakeRunner(n_blocks=N_BLOCKS, block_tokens=BLOCK_TOKENS),
    "torch": lambda: TorchRunner(tiny_model(), N_BLOCKS, threads=1),
    **{f"bfloat16 {kernels}": functools.partial(native_runner, "bfloat16", kernels) for kernels in SETS},
    **{f"int8 {kernels}": functools.partial(native_runner, "int8", kernels) for kernels in SETS},
}


class Sequence:
    """One sequence, with the lists that a scheduler would keep for it."""

    def __init__(self, rid: Rid, prompt: Iterable[TokenId], sampling: SamplingParams, seed: int = 0) -> None:
        self.rid = rid
        self.known = list(prompt)
        self.n_prompt = len(self.known)
        self.n_computed = 0
        self.block_ids: list[BlockId] = []
        self.drafts: list[TokenId] = []
        """The drafts of every row that samples, until a test sets others."""
        self.logprobs: list[Logprobs] = []
        """The logprobs of each token of the answer, if `sampling` asks for them."""
        self.sampling = sampling
        self.seed = seed

    @property
    def answer(self) -> list[TokenId]:
        return self.known[self.n_prompt :]

    def row(self, pool: BlockPool, max_tokens: int) -> Row:
        """The next row, with at most `max_tokens` known tokens."""
        n_tokens = min(max_tokens, len(self.known) - self.n_computed)
        samples = self.n_computed + n_tokens == len(self.known)
        drafts = self.drafts if samples else []
        end = self.n_computed + n_tokens + len(drafts)
        self.block_ids += pool.take(max(0, blocks_for(end, BLOCK_TOKENS) - len(self.block_ids)))
        return Row(
            rid=self.rid,
            known=self.known,
            start=self.n_computed,
            n_tokens=n_tokens + len(drafts),
            block_ids=self.block_ids,
            samples=samples,
            n_prompt=self.n_prompt,
            sampling=self.sampling,
            seed=self.seed,
            drafts=drafts,
        )

    def take(self, row: Row, token_ids: list[TokenId], logprobs: Iterable[Logprobs | None]) -> None:
        """Add the result of a step: the sampled tokens and their logprobs."""
        n_accepted = count_accepted(row.drafts, token_ids)
        self.n_computed += row.n_tokens - len(row.drafts) + n_accepted
        self.known += token_ids[: n_accepted + 1]
        self.logprobs += [one for one in itertools.islice(logprobs, n_accepted + 1) if one is not None]


class Driver:
    """Runs sequences on a runner, step by step. `forget` and `finish` return blocks, which other sequences then get."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.pool = BlockPool(N_BLOCKS)
        self.step_id = 0
        self._retired: list[Rid] = []

    def step(self, *sequences: Sequence, max_tokens: int = 10_000) -> None:
        """Run one step that has a row for each sequence."""
        plan = self.plan(*sequences, max_tokens=max_tokens)
        result = self.runner.launch(plan).wait()
        assert result.step_id == plan.step_id
        token_ids, logprobs = iter(result.token_ids), iter(result.logprobs)
        for each, row in zip(sequences, plan.rows, strict=True):
            n = row.n_samples
            each.take(row, list(itertools.islice(token_ids, n)), list(itertools.islice(logprobs, n)))
        assert next(token_ids, None) is None and next(logprobs, None) is None

    def plan(self, *sequences: Sequence, max_tokens: int = 10_000) -> Plan:
        self.step_id += 1
        rows = tuple(each.row(self.pool, max_tokens) for each in sequences)
        retired, self._retired = tuple(self._retired), []
        return Plan(self.step_id, rows, retired)

    def finish(self, sequence: Sequence) -> None:
        """Release its blocks, and tell the runner with the next plan that it finished."""
        self.forget(sequence)
        self._retired.append(sequence.rid)

    def forget(self, sequence: Sequence) -> None:
        """Release its blocks and forget its computed tokens, as a preemption does."""
        self.pool.give(sequence.block_ids)
        sequence.block_ids = []
        sequence.n_computed = 0
