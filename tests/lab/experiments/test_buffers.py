"""The verdicts of `buffers`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.buffers import verdicts
from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.load.client import Target
from sluiceway_lab.session import RunningServer


def judged(events: dict[str, int], on_our_side: int = 20) -> list[bool | None]:
    """The verdicts, by the number of events of 1 kB that each run wrote."""
    lab = Lab(first=RunningServer(target=Target("127.0.0.1", 1)), is_smoke=False, seed=0, say=lambda line: None)
    for scenario, n in events.items():
        figures = {"absorbed_events": float(n), "event_bytes": 1000, "absorbed_bytes": n * 1000}
        figures["events_on_our_side"] = on_our_side
        lab.note("s", scenario, figures)
    return [verdict.stood for verdict in verdicts(lab)]


USUAL, NARROW = "limits, usual reader, 0 bytes more", "limits, narrow reader, 0 bytes more"
LONG = "limits, usual reader, 16384 bytes more"


@pytest.mark.parametrize(
    ("usual", "narrow", "systems", "on_our_side", "stood"),
    [
        (200, 90, 300, 20, [True, True, True, True]),
        (260, 90, 300, 20, [False, True, True, True]),
        (200, 110, 300, 20, [True, False, True, True]),
        (200, 90, 300, 100, [True, True, False, True]),
        (200, 90, 200, 20, [True, True, True, False]),
    ],
    ids=["as it should be", "too much", "felt late", "much on our side", "no difference"],
)
def test_each_fault_refutes_its_hypothesis_alone(
    usual: int, narrow: int, systems: int, on_our_side: int, stood: list[bool]
) -> None:
    systems_runs = {f"the system's {USUAL}": systems, f"the system's {NARROW}": systems}
    assert judged({f"ours {USUAL}": usual, f"ours {NARROW}": narrow, **systems_runs}, on_our_side) == stood


def test_what_a_run_does_not_have_is_not_judged() -> None:
    assert judged({f"ours {LONG}": 12}) == [True, None, None, None]
