"""Measures whether a first token waits for the prefills of others: many prompts in one step, or in several."""

from __future__ import annotations

import functools

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.scenarios import observe, stream_figures, together
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_VARIANTS = {
    "one step for all": ("--max-step-tokens", "8192", "--step-target", "60"),
    "as usual": (),
    "small steps": ("--max-step-tokens", "64"),
}
"""A token is sent at the end of its step, so the size of a step decides which request waits for which."""
_ALL, _USUAL, _SMALL = _VARIANTS
_STREAMS, _SMOKE_STREAMS = 32, 8
_REPEATS, _TOKENS = 5, 8
_MIN, _MEDIAN, _P99 = "first_token_min_s", "first_token_p50_s", "first_token_p99_s"


async def _run(lab: Lab) -> list[Verdict]:
    for name, flags in _VARIANTS.items():
        if name != _SMALL or not lab.is_smoke:
            async with lab.server(*flags, name=name) as server:
                await _measure(lab, server)
    return verdicts(lab)


async def _measure(lab: Lab, server: TargetServer) -> None:
    n = lab.pick(_STREAMS, _SMOKE_STREAMS)
    for repeat in range(-1, lab.pick(_REPEATS, 1)):
        requests = [server.request(text, _TOKENS) for text in prompts(lab.seed, f"first-token/{repeat}", n)]
        seen = await observe(server, functools.partial(together, server, requests))
        if repeat >= 0:  # the first is a warm-up
            figures = stream_figures(seen, _TOKENS)
            lab.note(server.name, "together", figures, streams=n, repeat=repeat, errors=seen.errors)


def verdicts(lab: Lab) -> list[Verdict]:
    first, middle, last = (
        {name: lab.median(figure, "together", server=name) for name in (_ALL, _USUAL)}
        for figure in (_MIN, _MEDIAN, _P99)
    )
    said = {
        name: f"{first[name] * 1e3:.0f} ms the first, {middle[name] * 1e3:.0f} the median, {last[name] * 1e3:.0f} p99"
        for name in (_ALL, _USUAL)
    }
    return [
        lab.timed(
            "where one step computes all prompts, all wait for the last (median within 10 % of p99)",
            middle[_ALL] > 0.9 * last[_ALL],
            said[_ALL],
        ),
        lab.timed(
            "as usual, the first in the queue do not wait for the last (median below 0.8 of p99)",
            middle[_USUAL] < 0.8 * last[_USUAL],
            said[_USUAL],
        ),
        lab.timed(
            "and the last pays no more than a tenth for it",
            last[_USUAL] <= 1.1 * last[_ALL],
            f"p99 {last[_USUAL] * 1e3:.0f} ms against {last[_ALL] * 1e3:.0f}; "
            f"the median {middle[_USUAL] * 1e3:.0f} against {middle[_ALL] * 1e3:.0f}",
        ),
    ]


EXPERIMENT = Experiment(
    name="first-token",
    question="Does the first token wait for others' prefills?",
    run=_run,
    columns=(
        Column(_MIN, "TTFT ms, first", 1e3, 0, True),
        Column(_MEDIAN, "p50", 1e3, 0, True),
        Column(_P99, "p99", 1e3, 0, True),
        Column("itl_p50_s", "ITL ms, p50", 1e3),
        Column("itl_max_s", "max", 1e3, 0),
    ),
    drawn=(_MEDIAN, _P99),
    not_shown=("delivery from the middle of a step: a step's tokens are sampled together, at its end",),
)
