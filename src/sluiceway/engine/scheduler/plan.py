"""A plan for one step and its result: the contract between the scheduler, which plans, and a runner, which computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from sluiceway.types import BlockId, Logprobs, Rid, SamplingParams, StepId, TokenId

NO_TOKEN: TokenId = -1
"""In a result: no token can be chosen, since no logit is above minus infinity. NaN counts as minus infinity."""


class Row(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The part of one sequence that a step computes.

    The model computes positions `start .. start + n_tokens - 1` of `known` followed by `drafts`. Their keys and values
    go to the blocks of `block_ids`, which also hold all earlier positions: position p is in
    `block_ids[p // block_tokens]` at `p % block_tokens`. If `samples`, the logits of the last known position give the
    next token of the sequence, and the logits of each draft give the token after it. A later step may begin at the
    position of a wrong draft and overwrite it.

    `known` and `block_ids` are the scheduler's own growing lists, not copies: read them during the step, keep nothing.
    Only entries below `start + n_tokens` (blocks that cover them) belong to this step.
    """

    rid: Rid
    known: Sequence[TokenId]
    start: int
    n_tokens: int
    block_ids: Sequence[BlockId]
    samples: bool
    n_prompt: int
    """`known[n_prompt:]` was generated; penalties need prompt and answer apart."""
    sampling: SamplingParams
    seed: int
    """The random number depends on this seed and on the position of the new token only (unsigned, 64 bits)."""
    drafts: Sequence[TokenId] = ()
    """Guessed next tokens, the last of the `n_tokens` of the row. Only a row that samples has any."""

    @property
    def n_samples(self) -> int:
        """How many tokens are sampled for the row."""
        return len(self.drafts) + 1 if self.samples else 0

    @property
    def token_ids(self) -> Sequence[TokenId]:
        """The `n_tokens` tokens that the model computes."""
        known = self.known[self.start : self.start + self.n_tokens - len(self.drafts)]
        return [*known, *self.drafts] if self.drafts else known

    def samplings(self) -> Sequence[Row]:
        """For each sampled token, the row that would sample it alone, with the drafts before it as known."""
        if not self.drafts:
            return (self,) if self.samples else ()
        n_known = self.n_tokens - len(self.drafts)
        return [replace(self, n_tokens=n_known + n, drafts=self.drafts[:n]) for n in range(self.n_samples)]

    def with_drafts(self, drafts: Sequence[TokenId]) -> Row:
        """The same row with these drafts; it must have none yet."""
        return replace(self, n_tokens=self.n_tokens + len(drafts), drafts=drafts)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: rows to compute as one batch. Rows do not interact."""

    step_id: StepId
    rows: tuple[Row, ...]
    retired: tuple[Rid, ...]
    """Sequences that finished since the last plan: a runner that keeps something for a sequence drops it now."""

    @property
    def n_tokens(self) -> int:
        return sum(row.n_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a plan.

    `token_ids` has `n_samples` entries for each row of the plan, in the order of the rows; each may be `NO_TOKEN`.
    `logprobs` is empty if no row wants logprobs; else it has an entry for each token, None where none are wanted.
    """

    step_id: StepId
    token_ids: Sequence[TokenId]
    logprobs: Sequence[Logprobs | None] = ()
