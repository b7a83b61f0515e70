"""Where coroutines may be interrupted: every `await` of a file by its syntax tree, and those at which a task is now."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Place(NamedTuple):
    """An `await`: the name of its file, and the line where it begins."""

    file: str
    line: int


class Awaits:
    """All of those files, which are in one folder. `async with` is left out: entering and leaving a timeout is no wait.

    A coroutine is at an `await` when it is on a line of it.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._of_line: dict[Place, Place] = {}
        for name in names:
            path = folder / f"{name}.py"
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Await)]
            # The inner one last, so that its lines are its own.
            for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self._of_line[Place(str(path), line)] = Place(path.name, node.lineno)

    @property
    def all(self) -> set[Place]:
        return set(self._of_line.values())

    def of_task(self, task: asyncio.Task[Any]) -> set[Place]:
        """Those at which it is suspended: the call of each coroutine into the next."""
        return self._known(_suspended(task.get_coro()))

    def of_caller(self) -> set[Place]:
        """Those through which the caller of this method is being run."""
        return self._known(_running(inspect.currentframe()))

    def _known(self, frames: Iterable[FrameType]) -> set[Place]:
        places = (Place(frame.f_code.co_filename, frame.f_lineno) for frame in frames)
        return {self._of_line[place] for place in places if place in self._of_line}


def _suspended(waits: object) -> Iterator[FrameType]:
    while inspect.iscoroutine(waits):
        if waits.cr_frame is not None:
            yield waits.cr_frame
        waits = waits.cr_await


def _running(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
