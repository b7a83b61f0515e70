"""Computes plans with a real model: one forward pass a step, and sampling."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS
from sluiceway.engine.scheduler.plan import Plan, Row, StepResult
from sluiceway.model.load import LoadedModel
from sluiceway.model.logprobs import logprobs_of
from sluiceway.model.sampler import Sampler, is_plainly_greedy
from sluiceway.types import Logprobs, SamplingParams, TokenId

_WARM_UP_ROWS = (1, 32)
_WARM_UP_TOKENS = 128


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A step that `launch` has computed already."""

    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class TorchRunner:
    """Implements `engine.runner.Runner`. Owns the cache; keeps counts of sequences with penalties until they retire.

    `threads` 0: one for each core that the process may use. It sets the number for the whole process.
    """

    def __init__(self, model: LoadedModel, n_blocks: int, *, threads: int = 0) -> None:
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self._model = model
        self._n_blocks = n_blocks
        self._pass = model.start(n_blocks)
        self._sampler = Sampler(model.config.eos_token_ids)

    def launch(self, plan: Plan) -> ComputedStep:
        self._sampler.forget(plan.retired)
        return ComputedStep(StepResult(plan.step_id, *self._compute(plan.rows)))

    def warm_up(self) -> None:
        """Make the first step of each size as fast as later ones. Call this before any step: it writes into blocks."""
        for n_rows in _WARM_UP_ROWS:
            self._compute(tuple(_warm_up_row(index % self._n_blocks, 1) for index in range(n_rows)))
        n_tokens = min(_WARM_UP_TOKENS, self._n_blocks * BLOCK_TOKENS, self._model.config.max_model_len)
        self._compute((_warm_up_row(0, n_tokens),))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache. The system takes memory when a block is used for the first time."""
        return self._pass.cache_bytes

    @property
    def n_remembered(self) -> int:
        """The number of sequences for which something is kept between steps."""
        return self._sampler.n_remembered

    def _compute(self, rows: tuple[Row, ...]) -> tuple[list[TokenId], list[Logprobs | None]]:
        """The sampled tokens, and their logprobs; an empty list if no row asks for logprobs."""
        if not rows:
            return [], []
        sampled = [sampling for row in rows for sampling in row.samplings()]
        chosen = [index for index, row in enumerate(sampled) if not is_plainly_greedy(row)]
        with_logprobs = [index for index, row in enumerate(sampled) if row.sampling.logprobs is not None]
        wanted = sorted({*chosen, *with_logprobs})
        outcome = self._pass.compute(rows, logits_of=wanted)
        # The sampler changes its logits, so logprobs are computed from a copy.
        raw = _rows_of(outcome.logits, wanted, with_logprobs) if with_logprobs and chosen else outcome.logits
        logits = outcome.logits if wanted == chosen else _rows_of(outcome.logits, wanted, chosen)
        tokens: list[TokenId] = outcome.largest.tolist()
        for index, token in zip(chosen, self._sampler.sample(logits, [sampled[i] for i in chosen]), strict=True):
            tokens[index] = token
        return tokens, _logprobs(raw, sampled, tokens, with_logprobs) if with_logprobs else []


def _rows_of(logits: Tensor, of: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """Copy the rows of the wanted tokens. `of` are the tokens that the rows belong to. Both lists ascend."""
    return logits[np.searchsorted(of, wanted)]


def _logprobs(
    logits: Tensor, sampled: Sequence[Row], tokens: Sequence[TokenId], with_logprobs: Sequence[int]
) -> list[Logprobs | None]:
    """The logprobs of the tokens with these indices; `logits` has a row for each of them."""
    logprobs: list[Logprobs | None] = [None] * len(sampled)
    n_top = [sampled[index].sampling.logprobs or 0 for index in with_logprobs]
    found = logprobs_of(logits.numpy(), [tokens[index] for index in with_logprobs], n_top)
    for index, one in zip(with_logprobs, found, strict=True):
        logprobs[index] = one
    return logprobs


def _warm_up_row(first_block: int, n_tokens: int) -> Row:
    n_blocks = -(-n_tokens // BLOCK_TOKENS)
    return Row(
        rid=-1,
        known=[0] * n_tokens,
        start=0,
        n_tokens=n_tokens,
        block_ids=range(first_block, first_block + n_blocks),
        samples=True,
        n_prompt=n_tokens,
        sampling=SamplingParams(temperature=0.0),
        seed=0,
    )
