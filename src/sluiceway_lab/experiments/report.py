"""A record of an experiment for a person: its table, which hypotheses stood and which fell, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Experiment
from sluiceway_lab.load.record import Record, Summary
from sluiceway_lab.load.tables import Column, show_table

_WORDS = {True: ("stood", "green"), False: ("fell", "bold red"), None: ("open", "dim")}
_BAR_INCHES = 0.35
_MARGIN_INCHES = 1.5
_BARS_WIDTH_INCHES = 5
_LINES_INCHES, _LINES_WIDTH_INCHES = 4.5, 6.5


def show(record: Record, experiment: Experiment, console: Console) -> None:
    rows = [(_place(one), one.figures) for one in record.summary]
    show_table(console, record.question, experiment.columns, rows)
    for verdict in record.verdicts:
        word, style = _WORDS[verdict.stood]
        console.print(Text.assemble((f"{word:<6}", style), f"{verdict.hypothesis}: {verdict.sentence}"))
    for sentence in record.not_shown:
        console.print(Text(f"not shown: {sentence}"))


def draw(record: Record, experiment: Experiment, path: Path) -> None:
    """Medians with whiskers from the least to the most; a panel for each figure that is drawn.

    Writes a PNG, or whatever the name of `path` says. Raises `ConfigError` if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [column for column in experiment.columns if column.figure in experiment.drawn]
    over_streams = experiment.is_drawn_over_streams
    height = _LINES_INCHES if over_streams else _MARGIN_INCHES + _BAR_INCHES * len(record.summary)
    width = _LINES_WIDTH_INCHES if over_streams else _BARS_WIDTH_INCHES
    figure = Figure(figsize=(width * len(columns), height), layout="constrained")
    FigureCanvasAgg(figure)
    for column, axes in zip(columns, figure.subplots(1, len(columns), squeeze=False)[0], strict=True):
        known = [one for one in record.summary if column.figure in one.figures]
        if over_streams:
            _draw_lines(axes, known, column)
        else:
            _draw_bars(axes, known, column)
    figure.suptitle(f"{record.question}\n{record.host.cpu}, {record.host.cores} cores; {record.started_at}", fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as fault:
        raise ConfigError("plot", f"cannot write {path}: {fault}") from fault


def _draw_bars(axes: Any, rows: Sequence[Summary], column: Column) -> None:
    medians, whiskers = _scaled(rows, column)
    axes.barh(range(len(rows)), medians, xerr=whiskers, capsize=3)
    axes.set_yticks(range(len(rows)), [_place(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(column.heading)
    axes.grid(axis="x", alpha=0.3)


def _draw_lines(axes: Any, rows: Sequence[Summary], column: Column) -> None:
    """Of the scenarios with more than one number of streams; both scales are logarithmic."""
    for scenario in dict.fromkeys(row.scenario for row in rows):
        own = sorted((row for row in rows if row.scenario == scenario), key=lambda row: row.streams)
        if len(own) > 1:
            medians, whiskers = _scaled(own, column)
            places = [row.streams for row in own]
            axes.errorbar(places, medians, yerr=whiskers, marker="o", capsize=3, label=scenario)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("at once")
    axes.set_ylabel(column.heading)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _scaled(rows: Sequence[Summary], column: Column) -> tuple[list[float], list[list[float]]]:
    """Medians, and how far below and above them the least and the most are."""
    spreads = [row.figures[column.figure] for row in rows]
    below = [(spread.median - spread.min) * column.scale for spread in spreads]
    above = [(spread.max - spread.median) * column.scale for spread in spreads]
    return [spread.median * column.scale for spread in spreads], [below, above]


def _place(row: Summary) -> str:
    what = f"{row.scenario} {row.streams}" if row.streams else row.scenario
    return f"{row.server}, {what}"
