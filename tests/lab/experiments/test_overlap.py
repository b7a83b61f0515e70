"""The verdicts of `overlap`, from invented figures."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.overlap import verdicts
from sluiceway_lab.load.record import Run
from support.labs import lab_of
from support.records import run


def level(streams: int, speed: float, itl_s: float, begun: int) -> Run:
    return run("s", "together", streams, tokens_per_s=speed, itl_p50_s=itl_s, streams_begun=float(begun))


def test_gain_of_batching_supports_all_hypotheses() -> None:
    lab = lab_of(run("s", "alone", 4, tokens_per_s=100.0), level(1, 100, 0.010, 1), level(2, 190, 0.011, 2))
    lab.runs.append(level(4, 350, 0.013, 4))
    found = verdicts(lab)
    assert [one.stood for one in found] == [True] * 4
    assert found[1].sentence == "4 together make 350 tokens/s, one after another 100: 3.50 x"
    assert found[3].sentence == "the ITL is 9.0 ms + 1.00 ms for each stream"


@pytest.mark.parametrize(
    ("runs", "refuted"),
    [
        ((level(1, 100, 0.010, 1), level(2, 190, 0.011, 1)), 0),
        ((level(1, 80, 0.010, 1), level(2, 90, 0.011, 2)), 1),
        ((level(1, 190, 0.010, 1), level(2, 150, 0.011, 2)), 2),
        ((level(1, 100, 0.010, 1), level(2, 190, 0.019, 2)), 3),
    ],
)
def test_each_fault_refutes_its_hypothesis_alone(runs: tuple[Run, ...], refuted: int) -> None:
    found = verdicts(lab_of(run("s", "alone", 2, tokens_per_s=100.0), *runs))
    assert [place for place, one in enumerate(found) if not one.stood] == [refuted]
