"""Writes results: tables for a person, JSON to a file or standard output, a plot to a file."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluiceway.cli.options import option
from sluiceway.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

# Without these packages the import fails, and the command line says what to install.
for _package in ("h11", "httpx_sse", "psutil"):
    if find_spec(_package) is None:
        raise ImportError(f"the lab needs {_package}: pip install 'sluiceway[lab]'")

_STDOUT = Path("-")

JsonFile = Annotated[
    Path | None,
    option(
        "--json",
        "Write the record to this file as one JSON object; - is standard output.",
        variable="SLUICEWAY_RECORD",
    ),
]
PlotFile = Annotated[Path | None, option("--plot", "Draw a plot into this file, a PNG. Needs matplotlib.")]


def console_beside(json_file: Path | None, pipe_columns: int) -> Console:
    """Return a console on standard output, or on standard error if the record goes to standard output.

    `pipe_columns` is its width if the output is not a terminal.
    """
    from rich.console import Console

    is_aside = json_file == _STDOUT
    is_screen = (sys.stderr if is_aside else sys.stdout).isatty()
    return Console(stderr=is_aside, width=None if is_screen else pipe_columns)


def require_place(path: Path | None, field: str) -> None:
    """Raises `ConfigError` if no file can be written at this path. Called before the measurement takes its minutes."""
    if path is None or path == _STDOUT:
        return
    if path.is_dir():
        raise ConfigError(field, f"cannot write {path}: it is a directory")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigError(field, f"cannot write {path}: no such directory, or no permission")


def write_record(record: Any, json_file: Path | None) -> None:
    """Raises `ConfigError` if the file cannot be written."""
    import msgspec

    if json_file is None:
        return
    raw = msgspec.json.encode(record)
    if json_file == _STDOUT:
        typer.echo(raw)
        return
    try:
        json_file.write_bytes(raw + b"\n")
    except OSError as fault:
        raise ConfigError("json", f"cannot write {json_file}: {fault.strerror}") from fault
