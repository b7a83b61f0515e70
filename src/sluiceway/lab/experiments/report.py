"""A record of an experiment for a person: its table, which hypotheses stood and which fell, and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from sluiceway.errors import ConfigError
from sluiceway.lab.experiments.experiment import Experiment, LabRecord
from sluiceway.lab.load.record import Summary
from sluiceway.lab.load.tables import show_table

_WORDS = {True: ("stood", "green"), False: ("fell", "bold red"), None: ("open", "dim")}
_BAR_INCHES = 0.35
_MARGIN_INCHES = 1.5


def show(record: LabRecord, experiment: Experiment, console: Console) -> None:
    rows = [(_place(one), one.figures) for one in record.summary]
    show_table(console, record.question, experiment.columns, rows)
    for verdict in record.verdicts:
        word, style = _WORDS[verdict.stood]
        console.print(Text.assemble((f"{word:<6}", style), f"{verdict.hypothesis}: {verdict.sentence}"))
    for sentence in record.not_shown:
        console.print(Text(f"not shown: {sentence}"))


def draw(record: LabRecord, experiment: Experiment, path: Path) -> None:
    """Medians as bars, with whiskers from the least to the most; a panel for each figure that is drawn.

    Writes a PNG, or whatever the name of `path` says. Raises `ConfigError` if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [column for column in experiment.columns if column.figure in experiment.drawn]
    height = _MARGIN_INCHES + _BAR_INCHES * len(record.summary)
    figure = Figure(figsize=(5 * len(columns), height), layout="constrained")
    FigureCanvasAgg(figure)
    for column, axes in zip(columns, figure.subplots(1, len(columns), squeeze=False)[0], strict=True):
        known = [(_place(one), one.figures[column.figure]) for one in record.summary if column.figure in one.figures]
        medians = [spread.median * column.scale for _, spread in known]
        below = [(spread.median - spread.min) * column.scale for _, spread in known]
        above = [(spread.max - spread.median) * column.scale for _, spread in known]
        axes.barh(range(len(known)), medians, xerr=[below, above], capsize=3)
        axes.set_yticks(range(len(known)), [place for place, _ in known])
        axes.invert_yaxis()
        axes.set_xlabel(column.heading)
        axes.grid(axis="x", alpha=0.3)
    figure.suptitle(f"{record.question}\n{record.host.cpu}, {record.host.cores} cores; {record.started_at}", fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as fault:
        raise ConfigError("plot", f"cannot write {path}: {fault}") from fault


def _place(row: Summary) -> str:
    what = f"{row.scenario} {row.streams}" if row.streams else row.scenario
    return f"{row.subject}, {what}"
