"""Fills one step: which rows it has, and how many tokens each.

The order is the policy. First every running request that is one token behind gets that token, the older before the
younger, so that no newcomer's prompt stalls a stream. What is left of the budget goes to those that are further behind,
in order of arrival, in chunks. Then, as long as there is budget, those that wait are seated. A prompt that is alone in
sight may have the whole budget; beside others it gets `chunk_tokens`, since all of them wait for the step to end. Where
none of them is a stream they wait for the first prompt in any case, and larger chunks are over sooner: then that may
have what it needs.

Prompts get all their blocks when they are seated; only a growing answer asks for more. If the pool runs out, the
request that asks takes from `Victims`. What it takes may still be fenced; then it sits out this step, and until it has
been served nobody else gets a new block and nobody is seated. So the oldest request always comes through.

Last come drafts, out of what is left: of the budget, and of blocks beyond one for each running request, so that none is
preempted for a guess. A step with drafts has `MAX_DRAFTED_STEP_TOKENS` at most: beside a prompt or in a crowd the
tokens of a step cost what they weigh, and speculation ceases.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from sluiceway.engine.scheduler.plan import Row
from sluiceway.engine.scheduler.request import Input, Request
from sluiceway.engine.scheduler.roster import Roster
from sluiceway.engine.scheduler.victims import Victims
from sluiceway.types import StepId

MAX_DRAFTED_STEP_TOKENS = 32
"""As long as a step is about reading the weights, more tokens cost it little; from about so many on they do."""


class NextStep:
    """The rows of one step in the making. Made for one call of `fill`."""

    def __init__(self, roster: Roster, *, step_id: StepId, max_step_tokens: int, chunk_tokens: int) -> None:
        self.rows: list[Row] = []
        self.n_preempted = 0
        self._roster = roster
        self._step_id = step_id
        self._budget = max_step_tokens
        self._chunk_tokens = chunk_tokens
        self._victims: Victims | None = None
        self._is_short = False

    def fill(self) -> None:
        """Choose the rows. Changes the roster: seats, preempts, and marks what is in flight from now on."""
        ready = sorted((r for r in self._roster.seated.values() if r.is_ready), key=attrgetter("arrival"))
        for request in ready:
            # Not all of them still are ready: to cover one may have taken the blocks of another.
            if request.n_behind == 1 and request.is_ready and self._cover(request):
                self._add(request)
        streams = [self._roster.seated[row.rid] for row in self.rows]
        if len(ready) + len(self._roster.queue) > 1:
            self._budget = min(self._budget, max(self._chunk_tokens, 0 if streams else self._next_prompt(ready)))
        for request in ready:
            if self._budget and request.is_ready and request.n_behind > 1:
                self._add(request)
        while self._budget and not self._is_short and (head := self._roster.next_to_seat()):
            self._roster.seat(head)
            self._add(head)
        self._speculate(streams)

    def _next_prompt(self, ready: Sequence[Request]) -> int:
        """What the first in line has yet to compute."""
        first = next((request for request in ready if request.is_ready), None) or self._roster.next_to_seat()
        return first.n_behind if first else 0

    def _cover(self, request: Request) -> bool:
        """Whether the request has the block that its next token needs."""
        n_missing = self._roster.n_missing_blocks(request)
        if n_missing == 0:
            return True
        if not self._is_short:
            self._take_back(n_missing, request)
            self._is_short = self._roster.pool.n_free < n_missing
        if self._is_short:
            return False
        self._roster.cover(request)
        return True

    def _take_back(self, n_blocks: int, needy: Request) -> None:
        """Preempt until that many blocks are free, or will be once the steps in flight have settled."""
        roster = self._roster
        while roster.pool.n_free + roster.leases.n_fenced < n_blocks:
            self._victims = self._victims or Victims(roster.seated.values())
            victim = self._victims.pop_for(needy)
            if victim is None:
                return
            roster.move(victim, Input.PREEMPT)
            self.n_preempted += 1

    def _speculate(self, streams: Sequence[Request]) -> None:
        """Gives drafts to the first rows, those of the streams, in even shares."""
        room = min(self._budget, MAX_DRAFTED_STEP_TOKENS - sum(row.n_tokens for row in self.rows))
        drafting = [index for index, request in enumerate(streams) if request.drafter is not None]
        for n_before, index in enumerate(drafting):
            if room < 1:
                return
            request, share = streams[index], -(-room // (len(drafting) - n_before))
            drafts = request.draft(min(share, self._roster.draft_room(request)))
            if drafts:
                self._roster.cover(request, len(drafts))
                self.rows[index] = self.rows[index].with_drafts(drafts)
                room -= len(drafts)

    def _add(self, request: Request) -> None:
        n_behind = request.n_behind
        n_tokens = min(n_behind, self._budget)
        self._budget -= n_tokens
        self.rows.append(
            Row(
                rid=request.rid,
                known=request.known,
                start=request.n_computed,
                n_tokens=n_tokens,
                block_ids=self._roster.leases.blocks_of(request.rid),
                samples=n_tokens == n_behind,
                n_prompt=request.n_prompt,
                sampling=request.sampling,
                seed=request.seed,
            )
        )
        request.in_flight = self._step_id
        request.was_planned = True
