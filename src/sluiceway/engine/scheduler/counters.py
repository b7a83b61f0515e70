"""What the scheduler counts from its start, and the snapshot that it makes of that and of the tables."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.types import EngineStats


@dataclass(slots=True)
class Counters:
    """Counts sequences and tokens.

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

    def snapshot(self, table: SequenceTable, *, step_s: float, step_tokens: int) -> EngineStats:
        """A snapshot. `waiting` counts the sequences in the queue, `paused` those that are paused or parked."""
        return EngineStats(
            step_id=table.launched,
            running=table.n_running,
            waiting=len(table.queue),
            paused=len(table.live) - table.n_running - len(table.queue),
            blocks_free=table.pool.n_free,
            blocks_leased=table.leases.n_leased,
            blocks_fenced=table.leases.n_fenced,
            blocks_cached=0,
            blocks_total=table.pool.n_blocks,
            accepted_total=self.accepted,
            finished_total=self.finished,
            released_total=table.leases.released_total,
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
