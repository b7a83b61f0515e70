"""A question of `check` and its finding: a grade, a sentence with the number, and the figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.load.record import Figures, Grade


class Finding(msgspec.Struct, frozen=True):
    """The answer to a question."""

    grade: Grade
    sentence: str
    figures: Figures = {}


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a server.

    `ask` sends a bounded number of requests; its caller limits its time. If it raises `LoadError`, the server failed.
    """

    name: str
    asks: str
    ask: Callable[[CheckContext], Awaitable[Finding]]


def unknown(reason: str) -> Finding:
    return Finding(Grade.UNKNOWN, reason)


def graded(value: float, passes_to: float, warns_to: float) -> Grade:
    """Grade a value of which less is better."""
    if value <= passes_to:
        return Grade.PASS
    return Grade.WARN if value <= warns_to else Grade.FAIL


def by_faults(faults: list[str], blemishes: list[str], praise: str, figures: Figures | None = None) -> Finding:
    """Any fault fails, any blemish warns. The sentence names all of them."""
    grade = Grade.FAIL if faults else Grade.WARN if blemishes else Grade.PASS
    return Finding(grade, "; ".join(dict.fromkeys([*faults, *blemishes])) or praise, figures or {})
