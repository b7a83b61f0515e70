"""Writes results: tables for a person, JSON to a file or standard output, a plot to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluiceway.cli.options import URL_MODEL_VARIABLE, option
from sluiceway.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

# Without these packages the import fails, and the command line says what to install.
for _package in ("h11", "httpx_sse", "psutil"):
    if find_spec(_package) is None:
        raise ImportError(f"the lab needs {_package}: pip install 'sluiceway[lab]'")

_STDOUT = Path("-")
_PIPE_COLUMNS = 200
"""Wide enough that no column is folded when the output is not a terminal."""

JsonFile = Annotated[
    Path | None,
    option(
        "--json",
        "Write the record to this file as one JSON object; - is standard output.",
        variable="SLUICEWAY_RECORD",
    ),
]
PlotFile = Annotated[Path | None, option("--plot", "Draw a plot into this file, a PNG. Needs matplotlib.")]


LabModel = Annotated[
    str | None,
    typer.Argument(
        help="The model of a server that is started, named as for serve (default: smollm2-135m). With --url, the "
        f"server's name for it (default: its first), which is set by {URL_MODEL_VARIABLE}.",
        envvar="SLUICEWAY_MODEL",
    ),
]


def progress(line: str) -> None:
    """Show a line on standard error."""
    typer.echo(line, err=True)


def command_line() -> list[str]:
    return ["sluiceway", *sys.argv[1:]]


def require_places(json_file: Path | None, plot: Path | None = None) -> None:
    """Raises `ConfigError` if a file cannot be written, or matplotlib is missing.

    Called before the measurement takes its minutes.
    """
    for path, field in ((json_file, "json"), (plot, "plot")):
        if path is None or path == _STDOUT:
            continue
        if path.is_dir():
            raise ConfigError(field, f"cannot write {path}: it is a directory")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ConfigError(field, f"cannot write {path}: no such directory, or no permission")
    if plot is not None and find_spec("matplotlib") is None:
        raise ConfigError("plot", "needs matplotlib; `pip install 'sluiceway[lab]'` brings it")


def report(record: Any, show: Callable[[Console], None], json_file: Path | None) -> None:
    """Print the tables, then write the record as JSON. If the record goes to standard output, the tables do not.

    The file is written last, so a full disk costs only the file. Raises `ConfigError` if it cannot be written.
    """
    import msgspec
    from rich.console import Console

    is_aside = json_file == _STDOUT
    is_screen = (sys.stderr if is_aside else sys.stdout).isatty()
    show(Console(stderr=is_aside, width=None if is_screen else _PIPE_COLUMNS))
    if json_file is None:
        return
    raw = msgspec.json.encode(record)
    if is_aside:
        typer.echo(raw)
        return
    try:
        json_file.write_bytes(raw + b"\n")
    except OSError as fault:
        raise ConfigError("json", f"cannot write {json_file}: {fault.strerror}") from fault
