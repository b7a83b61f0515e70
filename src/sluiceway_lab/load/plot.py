"""A record as a picture: throughput and itls over the number of streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluiceway.errors import ConfigError
from sluiceway_lab.load.record import Record, Summary


def require_plotting() -> None:
    """Raises `ConfigError` where matplotlib is not installed: said before a long measurement, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("plot", "needs matplotlib; `pip install 'sluiceway[lab]'` brings it") from None


def draw(record: Record, path: Path) -> None:
    """Writes a PNG, or whatever the name of `path` says. Raises `ConfigError` if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
    for server in record.servers:
        levels = [one for one in record.summary if (one.server, one.scenario) == (server.name, "together")]
        levels.sort(key=lambda one: one.streams)
        if levels:
            _line(left, levels, "tokens_per_s", server.name, 1.0)
            _line(right, levels, "itl_p50_s", f"{server.name}, median", 1e3)
            _line(right, levels, "itl_p99_s", f"{server.name}, p99", 1e3)
    _label(left, "tokens/s")
    _label(right, "ITL between tokens, ms")
    figure.suptitle(f"{record.host.cpu}, {record.host.cores} cores; {record.started_at}", fontsize=9)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as fault:
        raise ConfigError("plot", f"cannot write {path}: {fault}") from fault


def _line(axes: Any, levels: Sequence[Summary], figure: str, label: str, scale: float) -> None:
    """The median, with whiskers from the least to the most."""
    known = [(one.streams, one.figures[figure]) for one in levels if figure in one.figures]
    medians = [spread.median * scale for _, spread in known]
    below = [(spread.median - spread.min) * scale for _, spread in known]
    above = [(spread.max - spread.median) * scale for _, spread in known]
    places = [streams for streams, _ in known]
    axes.errorbar(places, medians, yerr=[below, above], marker="o", capsize=3, label=label)
    axes.set_xticks(places, [str(place) for place in places])


def _label(axes: Any, what: str) -> None:
    axes.set_xlabel("streams at once")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
