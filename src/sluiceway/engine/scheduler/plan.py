"""What one step computes: the contract between the scheduler, which decides, and a runner, which computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from sluiceway.types import BlockId, Logprobs, Rid, SamplingParams, StepId, TokenId

NO_TOKEN: TokenId = -1
"""In a result: no token can be chosen there, as the model gave no logit above minus infinity. NaN counts as that."""


class Row(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The part of one sequence that a step computes.

    Positions `start .. start + n_tokens - 1` of `known`, followed by `drafts`, are run through the model; their keys
    and values go to the blocks of `block_ids` (position p lies in `block_ids[p // block_tokens]` at
    `p % block_tokens`), which also hold all earlier positions. If `samples`, the logits of the last known position give
    the sequence's next token, and those of each draft the token that follows it. A later step may begin at the place of
    a draft that proved wrong, and writes over it.

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
    """`known[n_prompt:]` is what was generated so far; penalties need the two apart."""
    sampling: SamplingParams
    seed: int
    """With the position of the new token it determines the random number: nothing else does (unsigned 64 bit)."""
    drafts: Sequence[TokenId] = ()
    """Tokens that may come next, the last of the row's `n_tokens`. Only a row that samples has any."""

    @property
    def n_samples(self) -> int:
        """Tokens that are sampled for it."""
        return len(self.drafts) + 1 if self.samples else 0

    @property
    def token_ids(self) -> Sequence[TokenId]:
        """What is run through the model: `n_tokens` of them."""
        known = self.known[self.start : self.start + self.n_tokens - len(self.drafts)]
        return [*known, *self.drafts] if self.drafts else known

    def samplings(self) -> Sequence[Row]:
        """For each token that is sampled the row that would sample it alone: drafts before it are taken for true."""
        if not self.drafts:
            return (self,) if self.samples else ()
        n_known = self.n_tokens - len(self.drafts)
        return [replace(self, n_tokens=n_known + n, drafts=self.drafts[:n]) for n in range(self.n_samples)]

    def with_drafts(self, drafts: Sequence[TokenId]) -> Row:
        """The same row, which runs these too. It has none yet."""
        return replace(self, n_tokens=self.n_tokens + len(drafts), drafts=drafts)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: rows to compute as one batch. Rows do not interact."""

    step_id: StepId
    rows: tuple[Row, ...]
    retired: tuple[Rid, ...]
    """Sequences that ended since the last plan: a runner that keeps something per sequence forgets it now."""

    @property
    def n_tokens(self) -> int:
        return sum(row.n_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`token_ids` has `n_samples` entries for each row of the plan, in the order of the rows; each may be `NO_TOKEN`.

    `logprobs` is empty where no row wants any; else it has an entry for each token, None for those that do without.
    """

    step_id: StepId
    token_ids: Sequence[TokenId]
    logprobs: Sequence[Logprobs | None] = ()
