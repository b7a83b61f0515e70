"""The command line. Each command imports its slow modules when it runs, so that `--help` is fast."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from sluiceway import __version__
from sluiceway.cli.chat import chat
from sluiceway.cli.exits import command
from sluiceway.cli.generate import generate
from sluiceway.cli.pull import pull
from sluiceway.cli.serve import serve
from sluiceway.errors import SluicewayError

EPILOG = (
    "Every flag can be set by a variable, which its help names. SLUICEWAY_CACHE_DIR: where models are kept. "
    "SLUICEWAY_OFFLINE=1: never use the network to fetch one. "
    "Exit codes: 0 done, 1 failed, 2 wrong flag or setting, 3 model not found, fetched or readable, 130 interrupted; "
    "serve exits with 0 if SIGTERM or Ctrl-C stopped it and every open response was closed, even with an error, "
    "and with 1 if a response broke off."
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
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A streaming server for large language models."""


LAB_COMMANDS = ("bench", "check", "lab")
"""Commands of the lab, a separate package that registers them as entry points."""


def lab_command(name: str) -> Callable[..., Any]:
    """Load a command of the lab. If the lab is not installed, return a command that says what to install."""
    for point in entry_points(group="sluiceway.commands", name=name):
        try:
            loaded: Callable[..., Any] = point.load()
        except ImportError:
            break
        return loaded

    @command
    def missing() -> None:
        raise SluicewayError(f"{name} is part of the lab, which is not installed: pip install 'sluiceway[lab]'")

    missing.__doc__ = "Not installed: pip install 'sluiceway[lab]'"
    return missing


for body in (serve, chat, generate, pull):
    app.command()(body)
for name in LAB_COMMANDS:
    app.command(name)(lab_command(name))
