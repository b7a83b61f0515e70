"""A runner without a model: instant, deterministic, and strict about the plans that it gets.

The text: the next token depends on the known tokens, on how many of them are the prompt, and on the seed (not in
greedy rows). It is a letter or a space, with consonants and vowels in turn, so that a byte tokenizer shows something
like words. If a token is lost, repeated or computed from wrong blocks, all later tokens change. Of the sampling
parameters, only `temperature` (zero or not) and `min_tokens` (no end token before) have an effect. With a `period`, the
text repeats itself: of that many tokens, all but the last are the same each time.

The logprobs: the likeliest token has half of the probability, the next one half of the rest, and so on. A greedy row
gets the likeliest token, another row one of the first few. All other tokens are capital letters.

The checks: for each block, the runner remembers which tokens were written there, from which position on, and after
which tokens. It computes a row only from blocks that hold exactly the earlier tokens of the row. Anything else (a
stale, reused or shared block, a position that is skipped or computed twice) raises `InvariantError`: the planner has a
bug.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sluiceway.config import BLOCK_TOKENS
from sluiceway.engine.scheduler.blocks import blocks_for
from sluiceway.engine.scheduler.plan import Plan, Row, StepResult
from sluiceway.errors import InvariantError
from sluiceway.types import BlockId, Logprobs, Rid, TokenId

_CONSONANTS = b"bdfghklmnprstvwz"
_VOWELS = b"aeiou"
_WORD_TOKENS = 5
_MASK = (1 << 64) - 1
_MULTIPLIER = 6364136223846793005
"""Together with `_INCREMENT`, the linear congruential generator of Knuth's MMIX."""
_INCREMENT = 1442695040888963407
_RANKS = 4
"""From how many of the likeliest tokens a row may get one."""
_FINISHER = 0xFF51AFD7ED558CCD
"""From the last step of MurmurHash3: it makes every bit count."""


@dataclass(slots=True, eq=False)
class _Block:
    """What was written to a block since its first position was. A digest is of all tokens up to a position."""

    index: int
    digest_before: int
    digest: int
    tokens: list[TokenId] = field(default_factory=list)


class FakeRunner:
    """A `Runner` without memory behind its blocks: `n_blocks` of them, or any number. `wait` computes the step.

    `eos_every` n makes every n-th generated token of a sequence the end token `eos_token_id`; 0 is never. `period` n
    makes n - 1 of n generated tokens a refrain; 0 is no refrain. A step takes `step_s` seconds, by `sleep`.
    """

    def __init__(
        self,
        *,
        n_blocks: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
        eos_token_id: TokenId = 0,
        eos_every: int = 0,
        period: int = 0,
        step_s: float = 0.0,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._block_tokens = block_tokens
        self._blocks: dict[BlockId, _Block] = {}
        self._n_blocks = n_blocks
        self._eos_token_id = eos_token_id
        self._eos_every = eos_every
        self._period = period
        self._step_s = step_s
        self._sleep = sleep
        self._in_flight: deque[Plan] = deque()
        self.sequences: dict[Rid, list[_Block]] = {}
        """Sequences that were computed and not retired yet, and what they wrote. Their blocks need no second reading
        as long as they are the same."""

    def launch(self, plan: Plan) -> FakeStep:
        """Check the form of a plan. Raises `InvariantError` for impossible rows."""
        if len({row.rid for row in plan.rows}) != len(plan.rows):
            raise InvariantError(f"step {plan.step_id} has two rows of one sequence")
        owners: dict[BlockId, Rid] = {}
        for row in (row for other in (*self._in_flight, plan) for row in other.rows):
            self._claim(row, owners)
        self._in_flight.append(plan)
        return FakeStep(self, plan)

    def run(self, plan: Plan) -> StepResult:
        """Compute the oldest plan in flight. Raises `InvariantError` if it is another, or if a block is stale."""
        if not self._in_flight or self._in_flight[0] is not plan:
            raise InvariantError(f"step {plan.step_id} is waited for out of order")
        self._in_flight.popleft()
        if self._sleep is not None and self._step_s > 0:
            self._sleep(self._step_s)
        for rid in plan.retired:
            self.sequences.pop(rid, None)
        sampled = [(row, token_id) for row in plan.rows for token_id in self._compute(row)]
        logprobs = []
        if any(row.sampling.logprobs is not None for row in plan.rows):
            logprobs = [_logprobs(row, token_id) for row, token_id in sampled]
        return StepResult(plan.step_id, [token_id for _, token_id in sampled], logprobs)

    def _claim(self, row: Row, owners: dict[BlockId, Rid]) -> None:
        """Note the blocks of a row, which no other row may use while it is in flight."""
        end, n_drafts = row.start + row.n_tokens, len(row.drafts)
        n_known, is_at_end = row.n_tokens - n_drafts, end - n_drafts == len(row.known)
        if row.start < 0 or n_known < 1 or end - n_drafts > len(row.known) or row.samples != is_at_end:
            raise InvariantError(f"sequence {row.rid}: {n_known} tokens from {row.start} of {len(row.known)}")
        if n_drafts and not row.samples:
            raise InvariantError(f"sequence {row.rid}: {n_drafts} drafts behind a chunk")
        n_blocks = blocks_for(end, self._block_tokens)
        if len(row.block_ids) < n_blocks:
            raise InvariantError(f"sequence {row.rid}: {len(row.block_ids)} blocks do not cover {end} tokens")
        for block_id in row.block_ids[:n_blocks]:
            if block_id < 0 or (self._n_blocks is not None and block_id >= self._n_blocks):
                raise InvariantError(f"sequence {row.rid}: block {block_id} is not in the cache")
            if owners.setdefault(block_id, row.rid) != row.rid:
                raise InvariantError(f"block {block_id} belongs to sequences {owners[block_id]} and {row.rid}")

    def _compute(self, row: Row) -> list[TokenId]:
        """Read the blocks before the row, write its own positions; the tokens that are sampled.

        A draft that is not the token which was sampled in its place, and whatever follows it, leaves no tokens behind.
        """
        blocks = self._read(row)
        digest = blocks[-1].digest if blocks else 0
        n_known = row.n_tokens - len(row.drafts)
        sampled: list[TokenId] = []
        is_true = True
        for n, token_id in enumerate(row.token_ids):
            is_true = is_true and (n < n_known or sampled[-1] == token_id)
            digest_before, digest = digest, (digest * _MULTIPLIER + token_id + _INCREMENT) & _MASK
            if is_true:
                self._write(row, blocks, row.start + n, token_id, (digest_before, digest))
            elif (index := (row.start + n) // self._block_tokens) >= len(blocks):
                self._blocks.pop(row.block_ids[index], None)
            if row.samples and n >= n_known - 1:
                sampled.append(self._next_token(row, row.start + n + 1, digest))
        self.sequences[row.rid] = blocks
        return sampled

    def _write(
        self, row: Row, blocks: list[_Block], position: int, token_id: TokenId, digests: tuple[int, int]
    ) -> None:
        """Note one token of a row. `digests` are those of all tokens before it, and with it."""
        index, offset = divmod(position, self._block_tokens)
        if offset == 0:
            blocks.append(_Block(index, digests[0], digests[0]))
            self._blocks[row.block_ids[index]] = blocks[-1]
        blocks[-1].digest = digests[1]
        blocks[-1].tokens.append(token_id)

    def _read(self, row: Row) -> list[_Block]:
        """The blocks before the row, if they hold exactly its earlier tokens."""
        block_ids = row.block_ids[: blocks_for(row.start, self._block_tokens)]
        blocks = [block for block_id in block_ids if (block := self._blocks.get(block_id)) is not None]
        if blocks != self.sequences.get(row.rid) or not self._reaches(blocks, row.start):
            self._verify(row, blocks)
        return blocks

    def _reaches(self, blocks: list[_Block], n_tokens: int) -> bool:
        return bool(blocks) and blocks[-1].index * self._block_tokens + len(blocks[-1].tokens) == n_tokens

    def _verify(self, row: Row, blocks: list[_Block]) -> None:
        digest = 0
        for index in range(blocks_for(row.start, self._block_tokens)):
            first = index * self._block_tokens
            tokens = list(row.known[first : min(first + self._block_tokens, row.start)])
            block = blocks[index] if index < len(blocks) else None
            if block is None or (block.index, block.digest_before, block.tokens) != (index, digest, tokens):
                raise InvariantError(f"sequence {row.rid}: block {row.block_ids[index]} does not hold its tokens")
            digest = block.digest

    def _next_token(self, row: Row, position: int, digest: int) -> TokenId:
        """The token at that position, after all tokens of the digest."""
        n_generated = position - row.n_prompt
        may_end = self._eos_every > 0 and n_generated >= row.sampling.min_tokens
        if may_end and (n_generated + 1) % self._eos_every == 0:
            return self._eos_token_id
        if self._period and (n_generated + 1) % self._period:
            n_generated %= self._period
            digest = n_generated * _MULTIPLIER & _MASK
        mixed = digest if row.sampling.temperature == 0 else digest ^ (row.seed * _MULTIPLIER & _MASK)
        mixed = ((mixed ^ (mixed >> 33)) * _FINISHER & _MASK) >> 33
        return _letter(n_generated % (_WORD_TOKENS + 1), mixed)


class FakeStep:
    """A launched step of a `FakeRunner`."""

    def __init__(self, runner: FakeRunner, plan: Plan) -> None:
        self._runner = runner
        self._plan = plan

    def wait(self) -> StepResult:
        return self._runner.run(self._plan)


def _logprobs(row: Row, token_id: TokenId) -> Logprobs | None:
    n_top = row.sampling.logprobs
    if n_top is None:
        return None
    rank = 0 if row.sampling.temperature == 0 else token_id % _RANKS
    top_ids = list(range(ord("A"), ord("A") + n_top))
    top_ids.insert(rank, token_id)
    logprobs = [-math.log(2) * (place + 1) for place in range(max(n_top, rank + 1))]
    return Logprobs(logprobs[rank], tuple(top_ids[:n_top]), tuple(logprobs[:n_top]))


def _letter(place: int, number: int) -> TokenId:
    if place == _WORD_TOKENS:
        return ord(" ")
    letters = _VOWELS if place % 2 else _CONSONANTS
    return letters[number % len(letters)]
