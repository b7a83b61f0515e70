"""Compares 1 to 32 simultaneous streams with the same number of prompts one after another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.scenarios import observe, one_by_one, stream_figures, together
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_LEVELS, _SMOKE_LEVELS = (1, 2, 4, 8, 16, 32), (1, 2, 4)
_TOKENS, _SMOKE_TOKENS = 64, 8
_REPEATS, _WARM_UP = 3, -1
_SPEED, _ITL, _BEGUN = "tokens_per_s", "itl_p50_s", "streams_begun"


async def _run(lab: Lab) -> list[Verdict]:
    levels = lab.pick(_LEVELS, _SMOKE_LEVELS)
    async with lab.server() as server:
        lab.say("warming up")
        await _measure(lab, server, "together", max(levels), _WARM_UP)
        for repeat in range(lab.pick(_REPEATS, 1)):
            await _measure(lab, server, "alone", max(levels), repeat)
            for level in levels:
                await _measure(lab, server, "together", level, repeat)
    return verdicts(lab)


async def _measure(lab: Lab, server: TargetServer, scenario: str, level: int, repeat: int) -> None:
    """Run this many prompts together, or one after another."""
    n_tokens = lab.pick(_TOKENS, _SMOKE_TOKENS)
    texts = prompts(lab.seed, f"overlap/{scenario}/{level}/{repeat}", level)
    requests = [server.request(text, n_tokens) for text in texts]
    pace = together if scenario == "together" else one_by_one
    seen = await observe(server, lambda: pace(server, requests))
    if repeat == _WARM_UP:
        return
    first_end_s = min(answer.chunk_s[-1] for answer in seen.answers)
    begun = sum(answer.chunk_s[0] <= first_end_s for answer in seen.answers)
    figures = stream_figures(seen, n_tokens) | {_BEGUN: float(begun)}
    lab.note(server.name, scenario, figures, streams=level, repeat=repeat, errors=seen.errors)


def verdicts(lab: Lab) -> list[Verdict]:
    levels = sorted({run.streams for run in lab.runs if run.scenario == "together"})
    top = levels[-1]
    begun = {level: min(lab.figures(_BEGUN, "together", level)) for level in levels}
    speed = {level: lab.median(_SPEED, "together", level) for level in levels}
    itl = {level: lab.median(_ITL, "together", level) for level in levels}
    alone = lab.median(_SPEED, "alone")
    falls = [level for lower, level in zip(levels, levels[1:], strict=False) if speed[level] <= speed[lower]]
    return [
        Verdict(
            "simultaneous requests run at the same time",
            all(begun[level] == level for level in levels),
            f"{begun[top]:.0f} of {top} had begun before the first of them ended",
        ),
        lab.timed(
            "together they are faster than one after another",
            speed[top] > alone,
            f"{top} together make {speed[top]:.0f} tokens/s, one after another {alone:.0f}: {speed[top] / alone:.2f} x",
        ),
        lab.timed(
            "every further level is faster than the one before",
            not falls,
            ", ".join(f"{level}: {speed[level]:.0f} tokens/s" for level in levels),
        ),
        lab.timed("a further stream adds less than half to the ITL of one stream", *_cost(itl)),
    ]


def _cost(itl: Mapping[int, float]) -> tuple[bool, str]:
    """Describe the ITL by a straight line over the number of streams."""
    slope, fixed = statistics.linear_regression(list(itl), list(itl.values()))
    return slope < fixed, f"the ITL is {fixed * 1e3:.1f} ms + {slope * 1e3:.2f} ms for each stream"


EXPERIMENT = Experiment(
    name="overlap",
    question="What do 1, 2, 4, 8, 16, 32 simultaneous streams get?",
    run=_run,
    columns=(
        Column("tokens_per_s", "tokens/s", digits=0, is_spread=True),
        Column("makespan_s", "makespan s", digits=2, is_spread=True),
        Column("first_token_p50_s", "TTFT ms, p50", 1e3, 0),
        Column("itl_p50_s", "ITL ms, p50", 1e3),
        Column("itl_p99_s", "p99", 1e3),
        Column(_BEGUN, "begun before the first end", digits=0),
    ),
    drawn=("tokens_per_s", "itl_p50_s"),
    not_shown=("client and server share the machine, so at many streams the client's own work is in the times",),
)
