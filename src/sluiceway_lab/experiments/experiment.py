"""What an experiment is, what it is given, and what it comes to: hypotheses, each with a sentence and its number."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.own_server import front_server, own_server
from sluiceway_lab.load.record import Record, Run, SubjectFacts
from sluiceway_lab.load.subject import Subject, meet
from sluiceway_lab.load.tables import Column
from sluiceway_lab.session import Own, There

Say = Callable[[str], None]
"""Shows a line of progress."""

_SIGNIFICANT_DIGITS = 6


class Verdict(msgspec.Struct, frozen=True):
    """`stood` is None where this run cannot tell; the sentence has the number, or says why there is none."""

    hypothesis: str
    stood: bool | None
    sentence: str


class LabRecord(Record, frozen=True, kw_only=True):
    """A record of the lab with what its hypotheses came to, and what it does not show."""

    question: str
    verdicts: list[Verdict]
    not_shown: list[str]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What an experiment works with. In a smoke run it does as little as shows that it works, on the fake model."""

    first: Own | There
    is_smoke: bool
    seed: int
    say: Say
    runs: list[Run] = field(default_factory=list)
    subjects: list[SubjectFacts] = field(default_factory=list)

    @property
    def is_own(self) -> bool:
        """Whether it starts its servers itself, and so may choose how."""
        return isinstance(self.first, Own)

    @contextlib.asynccontextmanager
    async def server(self, *flags: str, name: str | None = None, front: str | None = None) -> AsyncIterator[Subject]:
        """A server for the length of the block: its own, with these flags of `serve`, or the one that was named.

        With `front`, clients talk to that application of `fronts`, which stands before a server of its own.
        Raises `LoadError` for one that does not serve, `ConfigError` for flags or a front where it runs already.
        """
        if isinstance(self.first, There):
            if flags or front:
                raise ConfigError("url", f"this experiment must start its server itself, with {' '.join(flags)}")
            subject = await meet(self.first.target, name=name, model=self.first.model, pid=self.first.pid)
            self._note_subject(subject, None)
            yield subject
            return
        serve_flags = [*self.first.serve_flags, *flags]
        self.say(f"starting a server: {self.first.files.name} {' '.join(flags)}".rstrip())
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(own_server(self.first.files.path or self.first.files.name, serve_flags))
            await server.ready()
            target = server.target
            if front is not None:
                before = stack.enter_context(front_server(front, target))
                await before.ready()
                target = before.target
            subject = await meet(target, name=name, pid=server.pid)
            self._note_subject(subject, serve_flags)
            yield subject

    def note(self, run: Run) -> Run:
        """Keeps a run for the record, and says so."""
        figures = {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in run.figures.items()}
        kept = msgspec.structs.replace(run, figures=figures)
        self.runs.append(kept)
        place = f"{run.subject}, {run.scenario} {run.streams or ''}".rstrip()
        failed = f": {len(run.errors)} failed ({run.errors[0]})" if run.errors else ""
        self.say(f"{place}, repeat {run.repeat}{failed}")
        return kept

    def figures(
        self, name: str, scenario: str, streams: int | None = None, *, subject: str | None = None
    ) -> list[float]:
        """This figure of every run of a scenario that has it; of one number of streams, of one server, if given."""
        return [
            run.figures[name]
            for run in self.runs
            if run.scenario == scenario and name in run.figures
            if streams is None or run.streams == streams
            if subject is None or run.subject == subject
        ]

    def timed(self, hypothesis: str, stood: bool | None, sentence: str) -> Verdict:
        """A verdict about times: none in a smoke run, whose few short answers say nothing about them."""
        return Verdict(hypothesis, None if self.is_smoke else stood, sentence)

    def _note_subject(self, subject: Subject, flags: list[str] | None) -> None:
        if all(known.name != subject.name for known in self.subjects):
            self.subjects.append(subject.facts(flags))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`run` notes its runs in the lab and returns what its hypotheses came to. It raises `LoadError` where a server
    that it needs breaks off.

    `columns` are the figures of its table, `drawn` the names of those that its plot shows.
    """

    name: str
    question: str
    run: Callable[[Lab], Coroutine[Any, Any, list[Verdict]]]
    columns: tuple[Column, ...]
    drawn: tuple[str, ...]
    is_drawn_over_streams: bool = False
    """Whether its plot shows each scenario as a line over the number of streams, and not each row as a bar."""
    not_shown: tuple[str, ...] = ()
    """What a run leaves open, a sentence each."""
