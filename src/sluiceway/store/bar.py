"""A download, or the loading of a model, as a bar on stderr: bytes, rate, time left."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from sluiceway.store.progress import OnProgress, Progress

OnLoad = Callable[[int, int], None]
"""Bytes done, and all of them."""


@contextlib.contextmanager
def download_bar() -> Iterator[OnProgress]:
    """Yields what draws the bar. Nothing appears before the first report, so a model that is here shows none."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    more = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    bars = rich.Progress(*columns, *more, console=Console(stderr=True))
    tasks: dict[str, rich.TaskID] = {}

    def show(progress: Progress) -> None:
        if progress.what not in tasks:
            # Starts at what an earlier try brought, so that the rate counts only what arrives now.
            tasks[progress.what] = bars.add_task(progress.what, completed=progress.done, total=progress.total)
            bars.start()
        bars.update(tasks[progress.what], completed=progress.done, total=progress.total)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


@contextlib.contextmanager
def loading_bar(name: str) -> Iterator[OnLoad | None]:
    """Yields what draws the bar; None where stderr is no terminal, since a log is no place for it."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with download_bar() as show:
        yield lambda done_bytes, total_bytes: show(Progress(f"loading {name}", done_bytes, total_bytes))


@contextlib.contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yields what counts one more of `total`."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
