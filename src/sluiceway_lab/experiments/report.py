"""Prints the record of an experiment: its table, its verdicts, and what it does not show."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from sluiceway_lab.experiments.experiment import Experiment
from sluiceway_lab.load.record import Record
from sluiceway_lab.load.tables import show_table

_WORDS = {True: ("supported", "green"), False: ("refuted", "bold red"), None: ("open", "dim")}


def show(record: Record, experiment: Experiment, console: Console) -> None:
    show_table(console, record.question, experiment.columns, [(row.place, row.figures) for row in record.summary])
    for verdict in record.verdicts:
        word, style = _WORDS[verdict.stood]
        console.print(Text.assemble((f"{word:<10}", style), f"{verdict.hypothesis}: {verdict.sentence}"))
    for sentence in record.not_shown:
        console.print(Text(f"not shown: {sentence}"))
