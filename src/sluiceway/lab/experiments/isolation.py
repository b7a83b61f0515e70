"""Whether an answer depends on its neighbours: token ids of concurrent streams against the same prompts alone."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from sluiceway.lab.experiments import native
from sluiceway.lab.experiments.experiment import Experiment, Lab, Verdict
from sluiceway.lab.load.record import Run
from sluiceway.lab.load.subject import Subject
from sluiceway.lab.load.tables import Column
from sluiceway.lab.load.workload import prompts

_DTYPES = ("float32", "bfloat16", "int8")
_TOKENS, _SMOKE_TOKENS = 64, 8
_SAMPLED = "sampled"
_LEVELS = {"greedy": (1, 2, 4, 8, 16, 32), _SAMPLED: (1, 2, 4, 8)}
_SMOKE_LEVELS = {"greedy": (2, 4), _SAMPLED: (2, 4)}

_Ids = tuple[int, ...]


async def _run(lab: Lab) -> list[Verdict]:
    if lab.is_smoke or not lab.is_own:
        async with lab.server() as subject:
            await _measure(lab, subject)
        return [verdict(lab, subject.name, scenario) for scenario in _LEVELS]
    for dtype in _DTYPES:
        async with lab.server("--dtype", dtype, name=dtype) as subject:
            await _measure(lab, subject)
    return [verdict(lab, dtype, scenario) for dtype in _DTYPES for scenario in _LEVELS]


async def _measure(lab: Lab, subject: Subject) -> None:
    """Each prompt alone, then all of a level at once; greedily, and sampled with a seed for each prompt."""
    n_tokens = _SMOKE_TOKENS if lab.is_smoke else _TOKENS
    for scenario, levels in (_SMOKE_LEVELS if lab.is_smoke else _LEVELS).items():
        texts = prompts(lab.seed, f"isolation/{scenario}", max(levels))
        is_sampled = scenario == _SAMPLED
        fields = [{"temperature": 1.0, "seed": place} if is_sampled else {} for place in range(len(texts))]
        pairs = zip(texts, fields, strict=True)
        alone = [(await native.stream(subject, text, n_tokens, **own)).token_ids for text, own in pairs]
        for level in levels:
            crowd = await native.streams(subject, texts[:level], n_tokens, fields[:level])
            figures = compared(alone[:level], [one.token_ids for one in crowd])
            lab.note(Run(subject=subject.name, scenario=scenario, streams=level, repeat=0, figures=figures))


def compared(alone: Sequence[_Ids], crowd: Sequence[_Ids]) -> dict[str, float]:
    """How many are the same, and after how many tokens the first of the others parts from its own."""
    pairs = zip(alone, crowd, strict=True)
    places = [len(os.path.commonprefix((one, other))) for one, other in pairs if one != other]
    figures = {"answers": float(len(alone)), "same": float(len(alone) - len(places))}
    return figures | {"first_divergence_tokens": float(min(places))} if places else figures


def verdict(lab: Lab, subject: str, scenario: str) -> Verdict:
    same = sum(lab.figures("same", scenario, subject=subject))
    answers = sum(lab.figures("answers", scenario, subject=subject))
    parted = lab.figures("first_divergence_tokens", scenario, subject=subject)
    where = f", the first to part did so after {min(parted):.0f} tokens" if parted else ""
    sentence = f"{same:.0f} of {answers:.0f} answers have the token ids that they have alone{where}"
    return Verdict(f"{subject}, {scenario}: an answer does not depend on its neighbours", same == answers, sentence)


EXPERIMENT = Experiment(
    name="isolation",
    question="Is a stream's answer independent of its neighbours?",
    run=_run,
    columns=(Column("answers", "answers", digits=0), Column("same", "same as alone", digits=0)),
    drawn=("answers", "same"),
    not_shown=("by how much the likelier of two tokens won where answers part: log-probabilities are not told",),
)
