"""A download as a bar on stderr: bytes, rate, time left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sluiceway.store.progress import OnProgress, Progress


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
