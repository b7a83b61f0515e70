"""Finds where coroutines may be interrupted: every `await` of a file, and the ones at which a task is suspended."""

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
    """Finds the `await` expressions in files of one folder.

    A coroutine is at an `await` when it executes one of its lines. `async with` does not count: the code uses it only
    for timeouts, and entering or leaving a timeout does not wait.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._of_line: dict[Place, Place] = {}
        for name in names:
            path = folder / f"{name}.py"
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Await)]
            # An inner `await` comes after the outer one, so its lines are counted as its own.
            for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self._of_line[Place(str(path), line)] = Place(path.name, node.lineno)

    @property
    def all(self) -> set[Place]:
        return set(self._of_line.values())

    def of_task(self, task: asyncio.Task[Any]) -> set[Place]:
        """The `await`s at which the task is suspended: one in each of its nested coroutines."""
        return self._known(_suspended(task.get_coro()))

    def of_caller(self) -> set[Place]:
        """The `await`s in the stack of the caller."""
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
