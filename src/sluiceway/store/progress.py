"""The progress of a download or of the loading of a model, and the bar on stderr that shows it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

OnLoad: TypeAlias = Callable[[int, int], None]
"""Gets the bytes that are loaded, and the bytes of the whole."""


class DownloadProgress(msgspec.Struct, frozen=True):
    """How much of `what` is on the disk, in bytes. Bytes of an earlier, interrupted download count too."""

    what: str
    done: int
    total: int


OnProgress: TypeAlias = Callable[[DownloadProgress], None]


def silent(progress: DownloadProgress) -> None:
    """Show nothing."""


@contextlib.contextmanager
def download_bar() -> Iterator[OnProgress]:
    """Yield a function that draws the bar. No bar appears before its first call."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    more = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    bars = rich.Progress(*columns, *more, console=Console(stderr=True))
    tasks: dict[str, rich.TaskID] = {}

    def show(progress: DownloadProgress) -> None:
        if progress.what not in tasks:
            # Starts at what an earlier download left, so that the rate counts only bytes that arrive now.
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
    """Yield a function that draws the bar; None if stderr is no terminal, since a bar would spoil a log."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with download_bar() as show:
        yield lambda done_bytes, total_bytes: show(DownloadProgress(f"loading {name}", done_bytes, total_bytes))


@contextlib.contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function that counts one more of `total`."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
