"""Makes records of experiments from given runs, without measuring anything."""

from __future__ import annotations

from typing import Any

import msgspec

from sluiceway_lab.load.record import Floor, Host, Record, Run, ServerFacts, Weights, compare, summarize

FLOOR = Floor(device="cpu", threads=2, memory_gb_per_s=40.0, bfloat16_gflop_per_s=1010.0, float32_gflop_per_s=233.0)
WEIGHTS = Weights(dtype="bfloat16", parameters=134_515_008, head_parameters=28_311_552, step_bytes=269_030_016)


def run(server: str, scenario: str, streams: int, repeat: int = 0, **figures: float) -> Run:
    return Run(server=server, scenario=scenario, streams=streams, repeat=repeat, figures=figures)


def record(*runs: Run, **fields: Any) -> Record:
    """A record of these runs, with the servers in the order of their appearance."""
    names = list(dict.fromkeys(one.server for one in runs))
    servers = [
        ServerFacts(name=name, url="http://127.0.0.1:1", kind=None, version=None, model="m", extras={})
        for name in names
    ]
    host = Host(
        name="h", platform="p", cpu="a processor", cores=2, memory_bytes=1, gpu=None, load_before=0.5, load_after=1.5
    )
    made = Record(
        experiment="bench",
        git_sha="0" * 40,
        is_dirty=False,
        command=["sluiceway", "bench"],
        config={},
        host=host,
        versions={},
        seed=0,
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
        floor=FLOOR,
        weights=WEIGHTS,
        servers=servers,
        runs=list(runs),
        summary=summarize(runs),
        ratios=compare(runs, *names) if len(names) == 2 else [],
    )
    return msgspec.structs.replace(made, **fields)
