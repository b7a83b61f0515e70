"""Runs a benchmark: starts what must be started, measures, and makes the record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import uvloop

from sluiceway.config import Dtype, ModelFiles, ModelKind
from sluiceway_lab.bench import BenchConfig, Contender, bench_runs, completed
from sluiceway_lab.load import floor
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.machine import Measurement
from sluiceway_lab.load.processes import own_server
from sluiceway_lab.load.record import Record, Run, Say, ServerFacts, Weights, compare
from sluiceway_lab.load.target_server import meet


@dataclass(frozen=True, kw_only=True)
class OwnServer:
    """A server to start with this model. `flags` are additional flags of `sluiceway serve`."""

    files: ModelFiles
    dtype: Dtype = "auto"
    threads: int = 0
    flags: tuple[str, ...] = ()

    @property
    def serve_flags(self) -> list[str]:
        named = ["--served-model-name", self.files.name, "--dtype", self.dtype, "--threads", str(self.threads)]
        return [*named, *self.flags]


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A server that is running already. `pid` is its first process, if it runs on this machine.

    `files` and `dtype` describe its model, if they are known.
    """

    target: Target
    model: str | None = None
    pid: int | None = None
    files: ModelFiles | None = None
    dtype: Dtype = "auto"
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class Session:
    """One measurement. `rival` is interleaved with `first`. `command` is the command line that repeats it."""

    config: BenchConfig
    first: OwnServer | RunningServer
    rival: RunningServer | None = None
    measures_floor: bool = True
    command: Sequence[str] = ()

    def run(self, say: Say) -> Record:
        """Take minutes, and stop everything that was started. Raises `LoadError`.

        An interruption ends the measurement early and keeps the runs so far; without any, `KeyboardInterrupt` is
        raised.
        """
        measurement = Measurement.begin()
        for entrant in (self.first, self.rival):
            if isinstance(entrant, RunningServer):
                uvloop.run(_met(entrant))  # report an unreachable server before the machine is measured
        ground = self._ground(say)
        measured = _Measured()
        try:
            uvloop.run(self._measure(None if ground is None else ground.weights, say, measured))
        except KeyboardInterrupt:
            if not measured.runs:
                raise
            measured.is_partial = True
        facts, runs = measured.facts, completed(measured.runs)
        return measurement.record(
            "bench",
            self.command,
            msgspec.to_builtins(self.config),
            runs,
            seed=self.config.seed,
            floor=None if ground is None else ground.floor,
            weights=None if ground is None else ground.weights,
            servers=facts,
            ratios=compare(runs, facts[0].name, facts[1].name) if len(facts) > 1 else [],
            is_partial=measured.is_partial,
        )

    def _ground(self, say: Say) -> floor.MachineFloor | None:
        """Measure the floor before any server is started, while nothing else computes."""
        if not self.measures_floor:
            return None
        say("measuring the machine")
        first = self.first
        files = None if first.files is None or first.files.kind is ModelKind.FAKE else first.files
        return floor.ask(floor.FloorRequest(threads=first.threads, dtype=first.dtype, files=files))

    async def _measure(self, weights: Weights | None, say: Say, measured: _Measured) -> None:
        async with _entered(self.first, weights, say) as first:
            contenders = [first]
            measured.facts.append(first.server.facts(_flags_of(self.first)))
            if self.rival is not None:
                rival = await _met(self.rival)
                if rival.server.name == first.server.name:
                    rival = replace(rival, server=replace(rival.server, name=rival.server.target.url))
                contenders.append(rival)
                measured.facts.append(rival.server.facts())
            async for run in bench_runs(self.config, contenders, say):
                measured.runs.append(run)


@dataclass
class _Measured:
    """What has been measured so far."""

    facts: list[ServerFacts] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    is_partial: bool = False


@contextlib.asynccontextmanager
async def _entered(entrant: OwnServer | RunningServer, weights: Weights | None, say: Say) -> AsyncIterator[Contender]:
    if isinstance(entrant, RunningServer):
        yield replace(await _met(entrant), weights=weights)
        return
    say(f"starting a server with {entrant.files.name}")
    with own_server(entrant.files.path or entrant.files.name, entrant.serve_flags) as started:
        ready_s = await started.ready()
        server = await meet(started.target, pid=started.pid)
        yield Contender(server=server, weights=weights, ready_s=ready_s)


async def _met(entrant: RunningServer) -> Contender:
    return Contender(server=await meet(entrant.target, model=entrant.model, pid=entrant.pid))


def _flags_of(entrant: OwnServer | RunningServer) -> list[str] | None:
    return entrant.serve_flags if isinstance(entrant, OwnServer) else None
