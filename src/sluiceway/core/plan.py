"""What one step computes: the contract between the scheduler, which decides, and a runner, which computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluiceway.types import BlockId, Rid, SamplingParams, StepId, TokenId


@dataclass(frozen=True, slots=True)
class Row:
    """The part of one sequence that a step computes.

    Positions `start .. start + n_tokens - 1` of `known` are run through the model; their keys and values go to the
    blocks of `block_ids` (position p lies in `block_ids[p // block_tokens]` at `p % block_tokens`), which also hold all
    earlier positions. If `samples`, the logits of the last position give the sequence's next token.

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
    """`token_ids` has one entry for each row of the plan with `samples`, in the order of the rows."""

    step_id: StepId
    token_ids: Sequence[TokenId]
