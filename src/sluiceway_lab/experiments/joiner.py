"""Measures the TTFT of requests that join running streams, and the ITL of those streams: short prompts, a long one."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.client import record
from sluiceway_lab.load.record import Verdict, distribution
from sluiceway_lab.load.scenarios import under_way
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.transcript import Answer, read_answer, text_times
from sluiceway_lab.load.workload import JOINER_WORDS, long_prompt, prompts

_RESIDENTS, _SMOKE_RESIDENTS = (0, 8, 24), (0, 4)
_JOINING, _SMOKE_JOINING = 12, 3
_SMOKE_WORDS = 100
_MEAN_PAUSE_S, _SMOKE_PAUSE_S = 0.2, 0.02
_TOKENS, _RESIDENT_TOKENS = 8, 1000
_MEDIAN, _LONG_S, _ITL, _LONGEST = "first_token_p50_s", "joiner_first_token_s", "itl_p50_s", "longest_itl_s"
_BOUND_S = 0.15
"""Three times the target of a step (`--step-target`)."""


async def _run(lab: Lab) -> list[Verdict]:
    async with lab.server() as server:
        await record(server.target, server.request("warm up", _TOKENS))
        for level in lab.pick(_RESIDENTS, _SMOKE_RESIDENTS):
            for scenario in ("short", "long"):
                await _measure(lab, server, scenario, level)
    return verdicts(lab)


async def _measure(lab: Lab, server: TargetServer, scenario: str, level: int) -> None:
    """Send joining requests one after another, at random moments, while the residents stream."""
    drawing = random.Random(f"{lab.seed}/{scenario}/{level}")
    joined = []
    texts = prompts(lab.seed, f"joiner/residents/{scenario}/{level}", level)
    async with under_way(server, texts, _RESIDENT_TOKENS) as residents:
        for text in _joining(lab, scenario, level):
            await asyncio.sleep(drawing.expovariate(1 / lab.pick(_MEAN_PAUSE_S, _SMOKE_PAUSE_S)))
            joined.append(read_answer(await record(server.target, server.request(text, _TOKENS))))
        n_ended = sum(resident.is_over for resident in residents)
    times = [text_times(await resident.end()) for resident in residents]
    figures = joined_figures(scenario, joined, times) | {"residents_ended": float(n_ended)}
    lab.note(server.name, scenario, figures, streams=level)


def _joining(lab: Lab, scenario: str, level: int) -> list[str]:
    """Return several short prompts, or a prompt that takes more than a step."""
    name = f"joiner/{scenario}/{level}"
    if scenario == "long":
        return [long_prompt(lab.seed, name, lab.pick(JOINER_WORDS, _SMOKE_WORDS))]
    return prompts(lab.seed, name, lab.pick(_JOINING, _SMOKE_JOINING))


def joined_figures(scenario: str, joined: Sequence[Answer], residents: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the TTFTs of the joining requests, and the ITLs of the residents during that time."""
    first_tokens = [answer.first_token_s for answer in joined]
    figures = distribution("first_token", first_tokens) if scenario == "short" else {_LONG_S: first_tokens[0]}
    start_s, end_s = joined[0].started_s, joined[-1].chunk_s[-1]
    itls = [
        later_s - earlier_s
        for times in residents
        for earlier_s, later_s in zip(times, times[1:], strict=False)
        if later_s >= start_s and earlier_s <= end_s
    ]
    return figures | ({_ITL: statistics.median(itls), _LONGEST: max(itls)} if itls else {})


def verdicts(lab: Lab) -> list[Verdict]:
    levels = sorted({run.streams for run in lab.runs})
    few, many = next(level for level in levels if level), levels[-1]
    wait = {level: lab.figures(_MEDIAN, "short", level)[0] for level in levels}
    p99 = {level: lab.figures("first_token_p99_s", "short", level)[0] for level in levels}
    return [
        lab.timed(
            f"a joining request's TTFT grows more slowly than the number of streams ({many} against {few})",
            wait[many] / wait[few] < many / few,
            "first token "
            + ", ".join(f"with {level}: {wait[level] * 1e3:.0f} ms (p99 {p99[level] * 1e3:.0f})" for level in levels),
        ),
        *(
            lab.timed(
                f"{who} makes no running stream wait longer than {_BOUND_S:g} s",
                max(lab.figures(_LONGEST, scenario)) <= _BOUND_S,
                ", ".join(
                    f"longest ITL with {level}: {lab.figures(_LONGEST, scenario, level)[0] * 1e3:.0f} ms "
                    f"(median {lab.figures(_ITL, scenario, level)[0] * 1e3:.0f})"
                    for level in levels
                    if level
                ),
            )
            for scenario, who in (("short", "a short joining request"), ("long", f"a prompt of {JOINER_WORDS} words"))
        ),
    ]


EXPERIMENT = Experiment(
    name="joiner",
    question="What does a joining request pay, and what do the running streams?",
    run=_run,
    columns=(
        Column(_MEDIAN, "joining request's TTFT ms, p50", 1e3, 0),
        Column("first_token_p99_s", "p99", 1e3, 0),
        Column(_LONG_S, "long joining request's TTFT ms", 1e3, 0),
        Column(_ITL, "running streams' ITL ms, p50", 1e3),
        Column(_LONGEST, "longest", 1e3, 0),
        Column("residents_ended", "running streams that ended before", digits=0),
    ),
    drawn=(_MEDIAN, _LONGEST),
    not_shown=("requests that join at the same moment: see first-token",),
)
