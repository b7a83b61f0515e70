"""The counters make a snapshot of the engine."""

from __future__ import annotations

from sluiceway.engine.scheduler.counters import Counters
from sluiceway.engine.scheduler.sequence import Input
from sluiceway.engine.scheduler.sequence_table import SequenceTable
from sluiceway.types import EngineStats
from support.scheduling import engine_config, request


def test_snapshot_has_every_figure_in_its_field() -> None:
    """Two sequences run; one each is paused, parked, preempted, waiting, and finished with a fenced block."""
    table = SequenceTable(engine_config(n_blocks=20, max_running=8))
    requests = [request(rid) for rid in range(7)]
    for one in requests:
        table.enter(one)
    for one in requests[:5]:
        table.start(one)
    table.move(requests[2], Input.PAUSE)
    table.move(requests[3], Input.PREEMPT)
    table.move(requests[5], Input.PARK)
    table.launched = 4
    table.move(requests[4], Input.FINISH)
    counters = Counters(
        accepted=7, finished=1, preempted=2, prompt_tokens=28, generated_tokens=5, wasted_tokens=3,
        draft_tokens=6, accepted_draft_tokens=4, no_tokens=8,
    )  # fmt: skip
    assert counters.snapshot(table, step_s=0.5, step_tokens=9) == EngineStats(
        step_id=4,
        running=2,
        waiting=2,
        paused=2,
        blocks_free=16,
        blocks_leased=3,
        blocks_fenced=1,
        blocks_cached=0,
        blocks_total=20,
        accepted_total=7,
        finished_total=1,
        released_total=0,
        preempted_total=2,
        prompt_tokens_total=28,
        generated_tokens_total=5,
        wasted_tokens_total=3,
        draft_tokens_total=6,
        accepted_draft_tokens_total=4,
        no_tokens_total=8,
        step_s=0.5,
        step_tokens=9,
    )
