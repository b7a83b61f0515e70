"""What is asked, and what was found: a verdict, a sentence with its number, and the figures behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sluiceway_lab.check.peer import Peer


class Verdict(StrEnum):
    """`WARN` is lawful but worth knowing; `UNKNOWN` is no opinion, and its sentence says why."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """Figures have their unit in their name."""

    verdict: Verdict
    sentence: str
    figures: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Question:
    """`ask` is bounded in requests; whoever calls it bounds its time. Where it raises `LoadError` the server failed."""

    name: str
    asks: str
    ask: Callable[[Peer], Awaitable[Finding]]


def unknown(reason: str) -> Finding:
    return Finding(Verdict.UNKNOWN, reason)


def graded(value: float, passes_to: float, warns_to: float) -> Verdict:
    """Where less is better."""
    if value <= passes_to:
        return Verdict.PASS
    return Verdict.WARN if value <= warns_to else Verdict.FAIL


def by_faults(faults: list[str], blemishes: list[str], praise: str, figures: dict[str, float] | None = None) -> Finding:
    """The verdict of a list of findings: any fault fails, any blemish warns, and all of them are named."""
    verdict = Verdict.FAIL if faults else Verdict.WARN if blemishes else Verdict.PASS
    return Finding(verdict, "; ".join(dict.fromkeys([*faults, *blemishes])) or praise, figures or {})
