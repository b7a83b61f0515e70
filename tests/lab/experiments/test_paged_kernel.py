"""The verdicts of `paged-kernel`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.paged_kernel import EXPERIMENT, verdicts
from sluiceway_lab.load.record import Run
from support.labs import lab_of

ROWS = (1, 2, 4, 8, 16, 32, 64)


def one(scenario: str, n_rows: int, **figures: float) -> Run:
    return Run(server="bfloat16", scenario=scenario, streams=n_rows, repeat=0, figures=figures)


def straight(name: str, fixed_s: float, each_s: float, attention_s: float) -> list[Run]:
    return [one(name, n, step_s=fixed_s + n * each_s, attention_s=n * attention_s) for n in ROWS]


def runs(**changes: float) -> list[Run]:
    """Runs for which every hypothesis holds, with changes, in milliseconds."""
    found = {"apart": 0.01, "gather_fixed": 10.0, "short": 0.2, "long": 1.0, "mixed": 40.0} | changes
    gather_s = found["gather_fixed"] / 1e3
    return [
        one("both", 1, logits_apart=found["apart"]),
        *straight("gather, 128 tokens", gather_s, found["short"] / 1e3, 1e-4),
        *straight("gather, 1024 tokens", gather_s, found["long"] / 1e3, 9e-4),
        *straight("kernel, 128 tokens", 0.01, 0.09e-3, 1e-5),
        *straight("kernel, 1024 tokens", 0.01, 0.3e-3, 1e-4),
        one("gather, 128 tokens, one row 1024", 32, step_s=found["mixed"] / 1e3),
    ]


@pytest.mark.parametrize(
    ("changes", "refuted"),
    [
        ({}, []),
        ({"apart": 0.06}, [0]),
        ({"gather_fixed": 12.0}, [1]),
        ({"short": 0.15}, [2]),
        ({"long": 0.5}, [3]),
        ({"mixed": 20.0}, [4]),
    ],
    ids=["as it should be", "apart", "one is slower alone", "short rows alike", "long rows alike", "no padding"],
)
def test_each_fault_refutes_its_hypothesis_alone(changes: dict[str, Any], refuted: list[int]) -> None:
    judged = verdicts(lab_of(*runs(**changes)))
    assert [place for place, verdict in enumerate(judged) if not verdict.stood] == refuted


def test_sentences_have_their_numbers() -> None:
    said = [verdict.sentence for verdict in verdicts(lab_of(*runs()))]
    assert said[0] == "they are 1.00% of their length apart"
    assert said[1] == "128 tokens: 10.2 ms, 10.1; 1024 tokens: 11.0 ms, 10.3"
    assert said[3] == (
        "gather 10.0 ms + 1.00 ms a sequence, 0.90 of them attention's; 64 take 74 ms. "
        "kernel 10.0 ms + 0.30 ms a sequence, 0.10 of them attention's; 64 take 29 ms"
    )
    assert said[4] == "32 rows: 16.4 ms where all are short, 40.0 with one long row, 42.0 where all are"


async def test_server_that_runs_already_is_refused() -> None:
    with pytest.raises(ConfigError, match="^url: this experiment asks no server: it computes steps of the model"):
        await EXPERIMENT.run(lab_of())


def test_one_outlier_does_not_change_the_line() -> None:
    """From some size on, memory is allocated anew for every step. That is not the cost of a sequence."""
    made = [
        one(run.scenario, 64, step_s=0.85, attention_s=0.8)
        if run.scenario == "gather, 1024 tokens" and run.streams == 64
        else run
        for run in runs()
    ]
    said = verdicts(lab_of(*made))[3].sentence
    assert said.startswith("gather 10.0 ms + 1.00 ms a sequence, 0.90 of them attention's; 64 take 850 ms. ")
