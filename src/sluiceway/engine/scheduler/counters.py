"""What the scheduler counts from its start, and the snapshot that it makes of that and of the tables."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.engine.scheduler.roster import Roster
from sluiceway.types import EngineStats


@dataclass(slots=True)
class Counters:
    """Sequences and tokens so far.

    Each sampled token is counted once: as generated, as wasted, or as a draft that was not accepted.
    """

    accepted: int = 0
    finished: int = 0
    preempted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    wasted_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    no_tokens: int = 0

    def snapshot(self, roster: Roster, *, step_s: float, step_tokens: int) -> EngineStats:
        """`waiting` counts all that stand in the queue, `paused` all that are paused or parked."""
        return EngineStats(
            step_id=roster.launched,
            running=roster.n_running,
            waiting=len(roster.queue),
            paused=len(roster.live) - roster.n_running - len(roster.queue),
            blocks_free=roster.pool.n_free,
            blocks_leased=roster.leases.n_leased,
            blocks_fenced=roster.leases.n_fenced,
            blocks_cached=0,
            blocks_total=roster.pool.n_blocks,
            accepted_total=self.accepted,
            finished_total=self.finished,
            released_total=roster.leases.released_total,
            preempted_total=self.preempted,
            prompt_tokens_total=self.prompt_tokens,
            generated_tokens_total=self.generated_tokens,
            wasted_tokens_total=self.wasted_tokens,
            draft_tokens_total=self.draft_tokens,
            accepted_draft_tokens_total=self.accepted_draft_tokens,
            no_tokens_total=self.no_tokens,
            step_s=step_s,
            step_tokens=step_tokens,
        )
