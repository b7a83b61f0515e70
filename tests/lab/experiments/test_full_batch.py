"""The verdicts of `full-batch`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.experiments.full_batch import figures_of, verdicts
from sluiceway_lab.experiments.readers import LEFT, WHOLE, Reading
from sluiceway_lab.load.client import Target
from sluiceway_lab.session import RunningServer

SERVED = Reading(1.0, token_s=[1.5, 1.6], end=WHOLE)
WAITED = Reading(1.0, end=LEFT)


def test_who_was_not_served_has_waited_all_the_time() -> None:
    figures = figures_of([SERVED, WAITED, WAITED], wait_s=6.0)
    assert figures == {"fast_first_token_s": 6.0, "fast_first_token_max_s": 6.0, "fast_served": 1}


@pytest.mark.parametrize(
    ("pause_served", "served", "first_s", "held", "stood"),
    [
        (0, 4, 2.1, 1e5, [True, True, True, True]),
        (1, 4, 2.1, 1e5, [False, True, True, True]),
        (0, 3, 2.1, 1e5, [True, False, True, True]),
        (0, 4, 2.6, 1e5, [True, True, False, True]),
        (0, 4, 2.1, 1e7, [True, True, True, False]),
    ],
    ids=["as it should be", "pause frees slots", "one is not served", "too late", "too much held"],
)
def test_each_fault_refutes_its_hypothesis_alone(
    pause_served: int, served: int, first_s: float, held: float, stood: list[bool]
) -> None:
    lab = Lab(first=RunningServer(target=Target("127.0.0.1", 1)), is_smoke=False, seed=0, say=lambda line: None)
    for policy, n_served in (("pause", pause_served), ("pause-park-drop", served)):
        waits = {"fast_first_token_s": first_s, "fast_first_token_max_s": first_s}
        figures = waits | {"fast_served": n_served, "slots_of_paused": 4, "held_bytes": held}
        lab.note("s", policy, figures, streams=4)
    assert [verdict.stood for verdict in verdicts(lab, park_s=2.0)] == stood
