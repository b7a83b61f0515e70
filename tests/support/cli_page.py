"""Writes docs/cli.md from the command line. `scripts/docs` runs it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from sluiceway.cli.app import EPILOG, app

_HEAD = """# Command line

This page is written by `scripts/docs`; a test compares it with the program."""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, "", EPILOG, *_commands()]) + "\n"


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield f"\n## sluiceway {name}\n\n{command.help}\n"
        yield "| flag | variable | default | |"
        yield "|---|---|---|---|"
        for parameter in command.params:
            flag = ", ".join(f"`{spelling}`" for spelling in [*parameter.opts, *parameter.secondary_opts])
            yield f"| {flag} | {_code(parameter.envvar)} | {_code(parameter.default)} | {parameter.help} |"


def _code(value: object) -> str:
    shown = value.value if isinstance(value, enum.Enum) else value
    return "" if shown is None else f"`{shown}`"


if __name__ == "__main__":
    sys.stdout.write(page())
