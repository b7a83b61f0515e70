"""Runs a benchmark: starts what must be started, measures, and makes the record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
import uvloop

from sluiceway.config import Dtype, ModelFiles, ModelKind
from sluiceway_lab.bench import BenchConfig, bench_runs, completed
from sluiceway_lab.load import machine
from sluiceway_lab.load.client import Target
from sluiceway_lab.load.machine import FloorRequest, MachineFloor, Measurement
from sluiceway_lab.load.processes import own_server
from sluiceway_lab.load.record import Record, Run, Say, ServerFacts, Weights, compare
from sluiceway_lab.load.target_server import TargetServer, meet


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
    serve_flags: ClassVar[None] = None
    """Not known."""

    async def met(self, name: str | None = None) -> TargetServer:
        """Ask the server what it is. Raises `LoadError` if it does not answer."""
        return await meet(self.target, name=name, model=self.model, pid=self.pid)


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
                uvloop.run(entrant.met())  # report an unreachable server before the machine is measured
        ground = self._ground(say) if self.measures_floor else MachineFloor()
        facts: list[ServerFacts] = []
        made: list[Run] = []
        is_partial = False
        try:
            uvloop.run(self._measure(ground.weights, say, facts, made))
        except KeyboardInterrupt:
            if not made:
                raise
            is_partial = True
        runs = completed(made)
        return measurement.record(
            "bench",
            self.command,
            msgspec.to_builtins(self.config),
            runs,
            seed=self.config.seed,
            floor=ground.floor,
            weights=ground.weights,
            servers=facts,
            ratios=compare(runs, facts[0].name, facts[1].name) if len(facts) > 1 else [],
            is_partial=is_partial,
        )

    def _ground(self, say: Say) -> MachineFloor:
        """Measure the floor before any server is started, while nothing else computes."""
        say("measuring the machine")
        first = self.first
        files = None if first.files is None or first.files.kind is ModelKind.FAKE else first.files
        return machine.measure_floor(FloorRequest(threads=first.threads, dtype=first.dtype, files=files))

    async def _measure(self, weights: Weights | None, say: Say, facts: list[ServerFacts], runs: list[Run]) -> None:
        """Fill these lists with what is measured."""
        async with self._entered(say) as first:
            servers = [replace(first, weights=weights)]
            facts.append(first.facts(self.first.serve_flags))
            if self.rival is not None:
                rival = await self.rival.met()
                servers.append(replace(rival, name=rival.target.url) if rival.name == first.name else rival)
                facts.append(servers[-1].facts())
            async for run in bench_runs(self.config, servers, say):
                runs.append(run)  # noqa: PERF401  # an interruption leaves the runs so far

    @contextlib.asynccontextmanager
    async def _entered(self, say: Say) -> AsyncIterator[TargetServer]:
        """Start the first server, if it does not run yet."""
        entrant = self.first
        if isinstance(entrant, RunningServer):
            yield await entrant.met()
            return
        say(f"starting a server with {entrant.files.name}")
        with own_server(entrant.files.path or entrant.files.name, entrant.serve_flags) as started:
            ready_s = await started.ready()
            yield replace(await meet(started.target, pid=started.pid), ready_s=ready_s)
