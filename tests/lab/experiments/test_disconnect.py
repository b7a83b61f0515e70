"""What a release takes, judged from figures that are made up; the run itself is in `test_registry`'s smoke runs."""

from __future__ import annotations

import pytest

from sluiceway.lab.experiments.disconnect import verdicts
from sluiceway.lab.experiments.experiment import Lab
from sluiceway.lab.load.calls import Target
from sluiceway.lab.load.record import Run
from sluiceway.lab.session import There


def judged(steps: list[float], after: list[float], *, is_smoke: bool = False) -> list[bool | None]:
    lab = Lab(first=There(target=Target("127.0.0.1", 1)), is_smoke=is_smoke, seed=0, say=lambda line: None)
    for repeat, (n_steps, n_after) in enumerate(zip(steps, after, strict=True)):
        figures = {"release_s": n_steps * 0.01, "release_steps": n_steps, "tokens_after": n_after, "step_s": 0.01}
        lab.note(Run(subject="s", scenario="middle, FIN, plain", streams=0, repeat=repeat, figures=figures))
    queued = {"release_s": 0.001, "release_steps": 0.1, "step_s": 0.01}
    lab.note(Run(subject="s", scenario="queued, FIN, plain", streams=0, repeat=0, figures=queued))
    return [verdict.stood for verdict in verdicts(lab)]


@pytest.mark.parametrize(
    ("steps", "after", "stood"),
    [
        ([0.5, 0.6, 1.9], [0, 1, 1], [True, True, True]),
        ([1.2, 1.3, 1.4], [0, 0, 0], [False, True, True]),
        ([0.2, 0.3, 2.1], [0, 0, 0], [True, False, True]),
        ([0.2, 0.3, 0.4], [0, 2, 0], [True, True, False]),
    ],
    ids=["prompt", "slow in the middle", "one late", "computes on"],
)
def test_release_is_judged_by_the_length_of_a_step(steps: list[float], after: list[float], stood: list[bool]) -> None:
    """Half within one, all within two, and at most one token more."""
    assert judged(steps, after) == stood


def test_smoke_run_judges_no_times() -> None:
    """Its steps are as short as a scrape."""
    assert judged([9.0], [9.0], is_smoke=True) == [None, None, None]
