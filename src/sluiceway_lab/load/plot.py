"""Draws the summary of a record. Everything that is drawn goes through `draw`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluiceway.errors import ConfigError
from sluiceway_lab.load.record import Record, Summary
from sluiceway_lab.load.tables import Column

_BAR_INCHES, _MARGIN_INCHES, _BARS_WIDTH_INCHES = 0.35, 1.5, 5.0
_LINES_HEIGHT_INCHES, _LINES_WIDTH_INCHES = 4.5, 6.5


def draw(record: Record, columns: Sequence[Column], path: Path, *, over_streams: bool) -> None:
    """Draw a panel for each column: medians, with whiskers from the least to the greatest.

    `over_streams`: a panel has a line over the number of streams for each scenario that was run with several. Otherwise
    it has a bar for each row. The suffix of `path` chooses the format. Raises `ConfigError` if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _LINES_HEIGHT_INCHES if over_streams else _MARGIN_INCHES + _BAR_INCHES * len(record.summary)
    width = _LINES_WIDTH_INCHES if over_streams else _BARS_WIDTH_INCHES
    figure = Figure(figsize=(width * len(columns), height), layout="constrained")
    FigureCanvasAgg(figure)
    for column, axes in zip(columns, figure.subplots(1, len(columns), squeeze=False)[0], strict=True):
        rows = [row for row in record.summary if column.figure in row.figures]
        (_draw_lines if over_streams else _draw_bars)(axes, rows, column)
    title = record.question or record.experiment
    figure.suptitle(f"{title}\n{record.host.cpu}, {record.host.cores} cores; {record.started_at}", fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as fault:
        raise ConfigError("plot", f"cannot write {path}: {fault}") from fault


def _draw_bars(axes: Any, rows: Sequence[Summary], column: Column) -> None:
    medians, whiskers = _scaled(rows, column)
    axes.barh(range(len(rows)), medians, xerr=whiskers, capsize=3)
    axes.set_yticks(range(len(rows)), [row.place for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(column.heading)
    axes.grid(axis="x", alpha=0.3)


def _draw_lines(axes: Any, rows: Sequence[Summary], column: Column) -> None:
    """Both axes are logarithmic."""
    servers = {row.server for row in rows}
    for server, scenario in dict.fromkeys((row.server, row.scenario) for row in rows):
        own = sorted(
            (row for row in rows if (row.server, row.scenario) == (server, scenario)), key=lambda row: row.streams
        )
        if len(own) > 1:
            medians, whiskers = _scaled(own, column)
            label = scenario if len(servers) == 1 else f"{server}, {scenario}"
            axes.errorbar([row.streams for row in own], medians, yerr=whiskers, marker="o", capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("streams at the same time")
    axes.set_ylabel(column.heading)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _scaled(rows: Sequence[Summary], column: Column) -> tuple[list[float], list[list[float]]]:
    """Return the medians, and how far the least and the greatest are below and above them."""
    spreads = [row.figures[column.figure] for row in rows]
    below = [(spread.median - spread.min) * column.scale for spread in spreads]
    above = [(spread.max - spread.median) * column.scale for spread in spreads]
    return [spread.median * column.scale for spread in spreads], [below, above]
