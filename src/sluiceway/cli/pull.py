"""`sluiceway pull`: fetch a model into the cache and print where it lies."""

from __future__ import annotations

import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import Model, ModelSource
from sluiceway.config import ModelFiles, ModelKind
from sluiceway.store.bar import download_bar
from sluiceway.store.catalog import DEFAULT_MODEL, Source


def fetch(name: str, source: Source) -> ModelFiles:
    """The model's files, with a bar on stderr where they have to be fetched. Raises `ModelSourceError`."""
    from sluiceway.store.models import pull as pull_model

    with download_bar() as show:
        return pull_model(name, source=source, on_progress=show)


@command
def pull(model: Model = DEFAULT_MODEL, source: ModelSource = Source.AUTO) -> None:
    """Fetch a model, unless it is here, and print its path."""
    files = fetch(model, source)
    if files.kind is ModelKind.FAKE:
        typer.echo("the fake model has no files", err=True)
    else:
        typer.echo(files.path)
