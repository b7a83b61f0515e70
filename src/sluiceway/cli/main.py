"""The entry point: which commands there are. Their heavy imports happen when they run, so `--help` stays quick."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from sluiceway import __version__
from sluiceway.cli.bench import bench
from sluiceway.cli.chat import chat
from sluiceway.cli.check import check
from sluiceway.cli.generate import generate
from sluiceway.cli.lab import lab
from sluiceway.cli.pull import pull
from sluiceway.cli.serve import serve

EPILOG = (
    "Every flag can be set by a variable, which its help names. SLUICEWAY_CACHE_DIR: where models are kept. "
    "SLUICEWAY_OFFLINE=1: never use the network to fetch one. "
    "Exit codes: 0 done, 1 failed, 2 wrong flag or setting, 3 model not found, fetched or readable, 130 interrupted."
)

app = typer.Typer(
    name="sluiceway",
    help="A streaming server for large language models.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"sluiceway {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A streaming server for large language models."""


for body in (serve, chat, generate, bench, check, lab, pull):
    app.command()(body)


def main() -> None:
    """Runs the command line of this process and exits."""
    _replace_closed_streams()
    app()


def _replace_closed_streams() -> None:
    """What Python found closed (`<&-`, a service without a terminal) is empty, or goes nowhere."""
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
