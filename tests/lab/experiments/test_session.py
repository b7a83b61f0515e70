"""The record of an experiment."""

from __future__ import annotations

from sluiceway_lab.experiments.session import LabSession
from sluiceway_lab.load.record import SCHEMA
from sluiceway_lab.session import RunningServer
from support.labs import experiment
from support.target_servers import NOWHERE


def test_record_says_all_of_it() -> None:
    lines: list[str] = []
    session = LabSession(
        experiment=experiment(), first=RunningServer(target=NOWHERE), seed=7, command=["sluiceway", "lab"]
    )
    record = session.run(lines.append)
    assert (record.schema, record.experiment, record.question) == (SCHEMA, "naps", "How long is a nap?")
    assert (record.seed, record.command, record.config) == (7, ["sluiceway", "lab"], {"smoke": False})
    assert [one.figures["took_s"].median for one in record.summary] == [0.5]
    assert [one.stood for one in record.verdicts] == [True, False, None] and record.not_shown == ["dreams"]
    assert lines == ["s, twice 2, repeat 0"] and record.duration_s > 0 and record.started_at.endswith("+00:00")
