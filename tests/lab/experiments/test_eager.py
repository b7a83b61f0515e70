"""The verdicts of `eager`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.eager import EXPERIMENT, ORDINARY, verdicts
from sluiceway_lab.load.record import Run
from support.labs import lab_of

PADDED_BYTES = 64 * 64 * 1024


def one(scenario: str, **figures: float) -> Run:
    return Run(server="s", scenario=scenario, streams=4, repeat=0, figures=figures)


def runs(**changes: float) -> list[Run]:
    """Runs for which every hypothesis holds, with changes."""
    found = {
        "server": 1.05,
        "made": 1.02,
        "written": 0.02,
        "late_bytes": 40.0,
        "late_s": 4e-6,
        "is_same": 1.0,
    } | changes
    padded = {key: found[key] * PADDED_BYTES for key in ("server", "made", "written")}
    return [
        one("padded, the server", held_per_reader_bytes=padded["server"], held_per_event_bytes=66_000.0),
        one("padded, when made", held_per_reader_bytes=padded["made"], held_per_event_bytes=66_000.0),
        one("padded, when written", held_per_reader_bytes=padded["written"], is_same=found["is_same"]),
        *(
            one(f"{spoken}, {way}", held_per_reader_bytes=1e6, held_per_event_bytes=n_bytes)
            for spoken in ORDINARY
            for way, n_bytes in (("when made", 100.0), ("when written", found["late_bytes"]))
        ),
        one("read at once, when made", cpu_per_event_s=4e-6),
        one("read at once, when written", cpu_per_event_s=found["late_s"]),
    ]


@pytest.mark.parametrize(
    ("changes", "refuted"),
    [
        ({}, []),
        ({"is_same": 0.0}, [0]),
        ({"server": 1.2, "made": 1.2}, [1]),
        ({"made": 0.8}, [2]),
        ({"written": 0.2}, [3]),
        ({"late_bytes": 60.0}, [4, 5, 6]),
        ({"late_s": 5e-6}, [7]),
    ],
    ids=["as it should be", "other bytes", "much more", "unlike the server", "held late too", "no gain", "slower"],
)
def test_each_fault_refutes_its_hypothesis_alone(changes: dict[str, Any], refuted: list[int]) -> None:
    judged = verdicts(lab_of(*runs(**changes)))
    assert [place for place, verdict in enumerate(judged) if not verdict.stood] == refuted


def test_smoke_run_judges_bytes_alone() -> None:
    few = [run for run in runs() if not run.scenario.startswith(ORDINARY[1:])]
    judged = verdicts(lab_of(*few, is_smoke=True))
    assert [verdict.stood for verdict in judged] == [True, None, None, None, None, None]


async def test_server_that_runs_already_is_refused() -> None:
    with pytest.raises(ConfigError, match="^url: this experiment must start its server itself"):
        await EXPERIMENT.run(lab_of())


def test_sentences_have_their_numbers() -> None:
    said = [verdict.sentence for verdict in verdicts(lab_of(*runs()))]
    assert said[1] == "4.40 MB a reader of 64 events of 64 KiB"
    assert said[4] == "40 bytes of memory an event in place of 100"
    assert said[7] == "4.00 µs an event, 4.00 when formatted early"
