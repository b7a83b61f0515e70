"""`sluiceway pull`, and how the other commands get their model: fetched, and loaded into this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import Model, ModelSource
from sluiceway.config import ModelFiles, ModelKind
from sluiceway.store.catalog import DEFAULT_MODEL, Source
from sluiceway.store.progress import download_bar

if TYPE_CHECKING:
    from sluiceway.llm import LLM


def fetch(name: str, source: Source) -> ModelFiles:
    """Return the model's files. Fetch them, with a bar on stderr, if they are not here. Raises `ModelSourceError`."""
    from sluiceway.store.models import pull as pull_model

    with download_bar() as show:
        return pull_model(name, source=source, on_progress=show)


def load(files: ModelFiles, **settings: Any) -> LLM:
    """Load the model into this process, with a bar on stderr. The settings are those of `LLM`."""
    from sluiceway.llm import LLM
    from sluiceway.obs.log import configure_log
    from sluiceway.store.progress import loading_bar

    configure_log("warning", "text", process="llm")  # to standard error: standard output is for the answer
    with loading_bar(files.name) as on_load:
        return LLM(files, **settings, on_load=on_load)


@command
def pull(model: Model = DEFAULT_MODEL, source: ModelSource = Source.AUTO) -> None:
    """Fetch a model, unless it is on this machine already, and print its path."""
    files = fetch(model, source)
    if files.kind is ModelKind.FAKE:
        typer.echo("the fake model has no files", err=True)
    else:
        typer.echo(files.path)
