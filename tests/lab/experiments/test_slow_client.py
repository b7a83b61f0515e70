"""The verdicts of `slow-client`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.experiments.readers import CUT, LEFT, WHOLE, Reading
from sluiceway_lab.experiments.slow_client import HeldSample, ServerWatch, healthy_figures, slow_figures, verdicts
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.session import RunningServer

SUBJECT = TargetServer(name="s", target=Target("127.0.0.1", 1), model="m", kind="sluiceway", version=None, extras={})


def test_healthy_readers_have_a_mean_time_and_a_worst_itl() -> None:
    readings = [Reading(0.0, token_s=[1.0, 1.1, 2.0], end=WHOLE), Reading(0.0, token_s=[1.0, 2.0, 4.0], end=WHOLE)]
    assert healthy_figures(readings) == pytest.approx({"healthy_completion_s": 3.0, "healthy_itl_p99_s": 2.0})


def test_held_resources_count_when_healthy_streams_are_done() -> None:
    """Slots and blocks count only then; bytes are the most at any time."""
    looks = [
        HeldSample(10.5, 8, 40, 900.0),
        HeldSample(12.0, 2, 10, 500.0),
        HeldSample(13.0, 1, 5, 100.0),
        HeldSample(14.0, 0, 0, 0.0),
    ]
    watch = ServerWatch(SUBJECT, healthy_end_s=11.0, started_s=10.0, looks=looks)
    readings = [Reading(10.0, end=end) for end in ("slow_client", WHOLE, CUT, LEFT)]
    assert slow_figures(readings, watch) == {
        "slow_out_s": 3.0,
        "held_bytes": 900.0,
        "held_slots": 2,
        "held_blocks": 10,
        "slow_told": 0.25,
        "slow_cut": 1,
    }


@pytest.mark.parametrize(
    ("policy", "ratios", "n_cut", "stood"),
    [
        ("pause", (0.9, 1.05), 0, [True, True]),
        ("pause", (0.9, 1.06), 0, [False, True]),
        ("drop", (1.0, 1.0), 1, [True, False]),
        ("pause", (0.9, 1.0, 1.0, 9.0), 0, [True, True]),
        ("pause", (0.9, 1.0, 9.0, 9.0), 0, [False, True]),
        ("naive", (2.1, 9.0), 0, [True, True]),
        ("naive", (1.0, 9.0), 0, [False, True]),
    ],
    ids=[
        "undisturbed", "disturbed", "cut off", "disturbed once of three times", "twice of three times", "naive waits",
        "naive does not wait",
    ],
)  # fmt: skip
def test_policies_are_judged_by_the_worst_of_their_levels(
    policy: str, ratios: tuple[float, ...], n_cut: int, stood: list[bool]
) -> None:
    """For each level, the median of its repeats counts."""
    lab = Lab(first=RunningServer(target=Target("127.0.0.1", 1)), is_smoke=False, seed=0, say=lambda line: None)
    scenario = f"padded, {policy}"
    lab.note("s", scenario, {"healthy_completion_s": 1.0})
    for place, ratio in enumerate(ratios):
        figures = {"healthy_ratio": ratio, "slow_cut": n_cut}
        lab.note("s", scenario, figures, streams=min(place + 1, 2), repeat=place)
    assert [verdict.stood for verdict in verdicts(lab)] == stood
