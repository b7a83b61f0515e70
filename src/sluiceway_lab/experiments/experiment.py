"""What an experiment is, and what it works with: servers, runs, verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sluiceway.config import ModelKind
from sluiceway.errors import ConfigError
from sluiceway_lab.load.processes import front_server, own_server
from sluiceway_lab.load.record import Figures, Run, Say, ServerFacts, Verdict, rounded
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer, meet
from sluiceway_lab.session import OwnServer, RunningServer

_GOODBYE_S = 0.05
SizeT = TypeVar("SizeT")


def values_of(runs: Iterable[Run], name: str) -> list[float]:
    """Return a figure of those runs that have it."""
    return [run.figures[name] for run in runs if name in run.figures]


def counted(hypothesis: str, held: Sequence[bool], what: str = "") -> Verdict:
    """Make a verdict about a hypothesis that must hold in all cases. The sentence counts them, and says `what`."""
    return Verdict(hypothesis, all(held), f"{sum(held)} of {len(held)} {what}".rstrip())


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Gives an experiment its servers, and collects its runs.

    A smoke run does the least that shows that the experiment works, on the fake model.
    """

    first: OwnServer | RunningServer
    is_smoke: bool
    seed: int
    say: Say
    runs: list[Run] = field(default_factory=list)
    servers: list[ServerFacts] = field(default_factory=list)

    @property
    def is_own(self) -> bool:
        """True if the experiment starts its servers itself, and so may choose their flags."""
        return isinstance(self.first, OwnServer)

    @property
    def is_fake(self) -> bool:
        """True if the experiment starts its servers with the fake model, for which a token costs nothing."""
        return isinstance(self.first, OwnServer) and self.first.files.kind is ModelKind.FAKE

    def pick(self, usual: SizeT, smoke: SizeT) -> SizeT:
        """Return a size of the experiment: the usual one, or that of a smoke run."""
        return smoke if self.is_smoke else usual

    @contextlib.asynccontextmanager
    async def server(
        self, *flags: str, name: str | None = None, front: str | None = None, pad_bytes: int = 0
    ) -> AsyncIterator[TargetServer]:
        """Yield a server: started with these flags of `serve`, or the running server.

        `front` starts an application of `fronts` between the clients and the server. `pad_bytes` makes every event
        longer, because every event repeats the name of the model; the record has the real name.
        Raises `LoadError` if the server does not start, and `ConfigError` for flags of a server that is running.
        """
        if isinstance(self.first, RunningServer):
            if flags or front or pad_bytes:
                needed = f", with {' '.join(flags)}" if flags else ""
                raise ConfigError("url", f"this experiment must start its server itself{needed}")
            yield self._met(await self.first.met(name), None)
            return
        files, serve_flags = self.first.files, [*self.first.serve_flags, *flags]
        padding = ["--served-model-name", "x" * pad_bytes] if pad_bytes else []
        self.say(f"starting a server: {files.name} {' '.join(flags)}".rstrip())
        with contextlib.ExitStack() as stack:
            started = stack.enter_context(own_server(files.path or files.name, [*serve_flags, *padding]))
            await started.ready()
            target = started.target
            if front is not None:
                before = stack.enter_context(front_server(front, target))
                await before.ready()
                target = before.target
            yield self._met(await meet(target, name=name, pid=started.pid), serve_flags)
            # A connection closes in the next turn of the loop. Stopping the server blocks the loop, and a server that
            # still has connections would wait for them.
            await asyncio.sleep(_GOODBYE_S)

    def _met(self, server: TargetServer, serve_flags: list[str] | None) -> TargetServer:
        if all(known.name != server.name for known in self.servers):
            model = self.first.files.name if isinstance(self.first, OwnServer) else server.model
            self.servers.append(replace(server, model=model).facts(serve_flags))
        return server

    def note(
        self,
        server: str,
        scenario: str,
        figures: Figures,
        *,
        streams: int = 0,
        repeat: int = 0,
        errors: Sequence[str] = (),
    ) -> None:
        """Add a run to the record, and report it as progress."""
        made = Run(
            server=server, scenario=scenario, streams=streams, repeat=repeat, figures=figures, errors=list(errors)
        )
        self.runs.append(rounded(made))
        failed = f": {len(errors)} failed ({errors[0]})" if errors else ""
        self.say(f"{made.place}, repeat {repeat}{failed}")

    def figures(
        self, name: str, scenario: str, streams: int | None = None, *, server: str | None = None
    ) -> list[float]:
        """Return a figure of all runs of a scenario that have it; with `streams` or `server`, only of theirs."""
        found = [run for run in self.runs if run.scenario == scenario]
        found = [run for run in found if streams in (None, run.streams) and server in (None, run.server)]
        return values_of(found, name)

    def median(self, name: str, scenario: str, streams: int | None = None, *, server: str | None = None) -> float:
        """Return the median of the same figures. Needs at least one."""
        return statistics.median(self.figures(name, scenario, streams, server=server))

    def timed(self, hypothesis: str, stood: bool | None, sentence: str) -> Verdict:
        """Make a verdict about times. A smoke run judges none, as its few short answers say nothing about times."""
        return Verdict(hypothesis, None if self.is_smoke else stood, sentence)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question, how it is measured, and how the result is shown.

    `run` adds its runs to the lab, and returns verdicts. It raises `LoadError` if a server breaks off. `columns` are
    those of the table; `drawn` names the figures of the plot.
    """

    name: str
    question: str
    run: Callable[[Lab], Coroutine[Any, Any, list[Verdict]]]
    columns: tuple[Column, ...]
    drawn: tuple[str, ...]
    is_drawn_over_streams: bool = False
    """True if the plot has a line over the number of streams for each scenario, instead of a bar for each row."""
    not_shown: tuple[str, ...] = ()
    """What a run leaves open, a sentence each."""

    @property
    def drawn_columns(self) -> list[Column]:
        return [column for column in self.columns if column.figure in self.drawn]
