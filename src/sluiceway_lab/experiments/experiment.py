"""What an experiment is, what it is given, and what it comes to: hypotheses, each with a sentence and its number."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.own_server import front_server, own_server
from sluiceway_lab.load.record import Run, Say, ServerFacts, Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, meet
from sluiceway_lab.session import OwnServer, RunningServer

_SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What an experiment works with. In a smoke run it does as little as shows that it works, on the fake model."""

    first: OwnServer | RunningServer
    is_smoke: bool
    seed: int
    say: Say
    runs: list[Run] = field(default_factory=list)
    servers: list[ServerFacts] = field(default_factory=list)

    @property
    def is_own(self) -> bool:
        """Whether it starts its servers itself, and so may choose how."""
        return isinstance(self.first, OwnServer)

    @contextlib.asynccontextmanager
    async def server(
        self, *flags: str, name: str | None = None, front: str | None = None
    ) -> AsyncIterator[TargetServer]:
        """A server for the length of the block: its own, with these flags of `serve`, or the one that was named.

        With `front`, clients talk to that application of `fronts`, which stands before a server of its own.
        Raises `LoadError` for one that does not serve, `ConfigError` for flags or a front where it runs already.
        """
        if isinstance(self.first, RunningServer):
            if flags or front:
                raise ConfigError("url", f"this experiment must start its server itself, with {' '.join(flags)}")
            server = await meet(self.first.target, name=name, model=self.first.model, pid=self.first.pid)
            self._note_server(server, None)
            yield server
            return
        serve_flags = [*self.first.serve_flags, *flags]
        self.say(f"starting a server: {self.first.files.name} {' '.join(flags)}".rstrip())
        with contextlib.ExitStack() as stack:
            started = stack.enter_context(own_server(self.first.files.path or self.first.files.name, serve_flags))
            await started.ready()
            target = started.target
            if front is not None:
                before = stack.enter_context(front_server(front, target))
                await before.ready()
                target = before.target
            server = await meet(target, name=name, pid=started.pid)
            self._note_server(server, serve_flags)
            yield server

    def note(self, run: Run) -> Run:
        """Keeps a run for the record, and says so."""
        figures = {name: float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for name, value in run.figures.items()}
        kept = msgspec.structs.replace(run, figures=figures)
        self.runs.append(kept)
        place = f"{run.server}, {run.scenario} {run.streams or ''}".rstrip()
        failed = f": {len(run.errors)} failed ({run.errors[0]})" if run.errors else ""
        self.say(f"{place}, repeat {run.repeat}{failed}")
        return kept

    def figures(
        self, name: str, scenario: str, streams: int | None = None, *, server: str | None = None
    ) -> list[float]:
        """This figure of every run of a scenario that has it; of one number of streams, of one server, if given."""
        return [
            run.figures[name]
            for run in self.runs
            if run.scenario == scenario and name in run.figures
            if streams is None or run.streams == streams
            if server is None or run.server == server
        ]

    def timed(self, hypothesis: str, stood: bool | None, sentence: str) -> Verdict:
        """A verdict about times: none in a smoke run, whose few short answers say nothing about them."""
        return Verdict(hypothesis, None if self.is_smoke else stood, sentence)

    def _note_server(self, server: TargetServer, flags: list[str] | None) -> None:
        if all(known.name != server.name for known in self.servers):
            self.servers.append(server.facts(flags))


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
