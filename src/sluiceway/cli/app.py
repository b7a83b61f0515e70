"""The commands that there are. Their heavy imports happen when they run, so `--help` stays quick."""

from __future__ import annotations

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
    "Exit codes: 0 done, 1 failed, 2 wrong flag or setting, 3 model not found, fetched or readable, 130 interrupted; "
    "serve ends with 0 when SIGTERM or Ctrl-C stops it and every open answer got its end, with 1 when one broke off."
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
