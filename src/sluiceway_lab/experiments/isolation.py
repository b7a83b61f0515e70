"""Compares the token ids of concurrent streams with those of the same prompts alone.

Each token comes with the logprobs of the two likeliest. Where answers differ, they show how far the likelier one was
ahead: a lead as small as a rounding error explains a difference, a larger lead does not.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Any

from sluiceway_lab.experiments import native
from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_DTYPES = ("float32", "bfloat16", "int8")
_TOKENS, _SMOKE_TOKENS = 64, 8
_SAMPLED = "sampled"
_LEVELS = {"greedy": (1, 2, 4, 8, 16, 32), _SAMPLED: (1, 2, 4, 8)}
_SMOKE_LEVELS = {"greedy": (2, 4), _SAMPLED: (2, 4)}


async def _run(lab: Lab) -> list[Verdict]:
    dtypes: tuple[str | None, ...] = _DTYPES if lab.is_own and not lab.is_smoke else (None,)
    for dtype in dtypes:
        flags = () if dtype is None else ("--dtype", dtype)
        async with lab.server(*flags, name=dtype) as server:
            await _measure(lab, server)
    return [verdict(lab, server.name, scenario) for server in lab.servers for scenario in _LEVELS]


async def _measure(lab: Lab, server: TargetServer) -> None:
    """Run each prompt alone, then all of a level together; greedy, and sampled with a seed for each prompt."""
    n_tokens = lab.pick(_TOKENS, _SMOKE_TOKENS)
    for scenario, levels in (_SMOKE_LEVELS if lab.is_smoke else _LEVELS).items():
        texts = prompts(lab.seed, f"isolation/{scenario}", max(levels))
        fields: list[dict[str, Any]] = [{"logprobs": 2} for _ in texts]
        if scenario == _SAMPLED:
            fields = [one | {"temperature": 1.0, "seed": place} for place, one in enumerate(fields)]
        pairs = zip(texts, fields, strict=True)
        alone = [await native.stream(server, text, n_tokens, **own) for text, own in pairs]
        for level in levels:
            batched = await native.streams(server, texts[:level], n_tokens, fields[:level])
            figures = compared(alone[:level], batched)
            lab.note(server.name, scenario, figures, streams=level)


def compared(alone: Sequence[native.NativeStream], batched: Sequence[native.NativeStream]) -> dict[str, float]:
    """Count equal answers, and find the first difference and its lead.

    Leads are those of the answers alone. There is none where one of two answers had just ended.
    """
    parted = []
    for one, other in zip(alone, batched, strict=True):
        if one.token_ids != other.token_ids:
            place = len(os.path.commonprefix((one.token_ids, other.token_ids)))
            parted.append((place, one.leads[place : place + 1]))
    figures = {
        "answers": float(len(alone)),
        "same": float(len(alone) - len(parted)),
        "least_lead": min(lead for one in alone for lead in one.leads),
    }
    if parted:
        place, leads = min(parted)
        figures["first_divergence_tokens"] = float(place)
        if leads:
            figures["divergence_lead"] = leads[0]
    return figures


def verdict(lab: Lab, server: str, scenario: str) -> Verdict:
    def figures(name: str) -> list[float]:
        return lab.figures(name, scenario, server=server)

    same, answers = sum(figures("same")), sum(figures("answers"))
    sentence = f"{same:.0f} of {answers:.0f} answers have the token ids that they have alone"
    if parted := figures("first_divergence_tokens"):
        sentence += f", the first difference came after {min(parted):.0f} tokens"
    if leads := figures("divergence_lead"):
        sentence += f", and where they differ the lead of the likeliest token was at most {max(leads):.3g}"
    sentence += f"; the smallest lead of all was {min(figures('least_lead')):.3g} in log-probability"
    return Verdict(f"{server}, {scenario}: an answer does not depend on other streams", same == answers, sentence)


EXPERIMENT = Experiment(
    name="isolation",
    question="Is an answer independent of other streams in the batch?",
    run=_run,
    columns=(
        Column("answers", "answers", digits=0),
        Column("same", "same as alone", digits=0),
        Column("least_lead", "closest lead", digits=6),
        Column("first_divergence_tokens", "first parts after", digits=0),
        Column("divergence_lead", "lead there", digits=6),
    ),
    drawn=("answers", "same"),
)
