"""`sluiceway bench`: measures a server that speaks the OpenAI protocol, alone or against another."""

from __future__ import annotations

import random
import shlex
from collections.abc import Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sluiceway.cli.exits import FAILED, INTERRUPTED, command
from sluiceway.cli.options import DEFAULT, DtypeOption, ModelSource, Threads, model_at_url, option, typed_flags
from sluiceway.config import Dtype, ModelFiles
from sluiceway.errors import ConfigError
from sluiceway.store.catalog import DEFAULT_MODEL, Source
from sluiceway_lab.cli.records import JsonFile, LabModel, PlotFile, command_line, progress, report, require_places

if TYPE_CHECKING:
    from sluiceway_lab.session import OwnServer

_SEEDS = 2**32

Url = Annotated[str | None, option("--url", "The server to measure. Without it, a server is started.")]
Vs = Annotated[str | None, option("--vs", "A second server, interleaved with the first; ratios are printed.")]
VsModel = Annotated[str | None, option("--vs-model", "The second server's name for its model (default: its first).")]
ApiKey = Annotated[str | None, option("--api-key", "Sent to --url and --vs as a bearer token.")]
Pid = Annotated[
    int | None, option("--pid", "First process of --url, if it runs on this machine: for processor time and memory.")
]
VsPid = Annotated[int | None, option("--vs-pid", "First process of --vs, if it runs on this machine.")]
WeightFiles = Annotated[
    str | None,
    option("--weights", "The model that --url computes, named as for serve: for bytes and operations per second."),
]
Levels = Annotated[str, option("--levels", "Numbers of simultaneous streams, separated by commas.")]
Repeats = Annotated[
    int,
    option(
        "--repeats", "Runs of the lowest and highest level, and one after another; at most three of the others.", min=1
    ),
]
Tokens = Annotated[int, option("--tokens", "Tokens of each answer.", min=2)]
BenchSeed = Annotated[
    int | None,
    option(
        "--seed",
        "Seed of the prompts (default: new prompts each time, as a server may cache earlier ones).",
        variable="SLUICEWAY_PROMPT_SEED",
    ),
]
Scenario = Annotated[
    list[str] | None,
    option("--scenario", "Only this scenario: streams, prefill, joiner, close, memory, start, soak. May be repeated."),
]
Requests = Annotated[
    int, option("--requests", "Number of requests in the scenario soak, which runs only if it is named.")
]
Quick = Annotated[
    bool,
    option(
        "--quick",
        "One run of three levels with shorter answers, unless flags say otherwise: a first idea, not a claim.",
    ),
]
NoFloor = Annotated[bool, option("--no-floor", "Do not measure the speed of the machine: memory, matrix products.")]
ServeArgs = Annotated[str, option("--serve-args", "Flags for the started server, as one string.")]


@command
def bench(
    context: typer.Context,
    model: LabModel = None,
    url: Url = None,
    vs: Vs = None,
    vs_model: VsModel = None,
    api_key: ApiKey = None,
    pid: Pid = None,
    vs_pid: VsPid = None,
    weights: WeightFiles = None,
    levels: Levels = "1,2,4,8,16,32",
    repeats: Repeats = 5,
    tokens: Tokens = 64,
    seed: BenchSeed = None,
    scenario: Scenario = None,
    requests: Requests = 100_000,
    quick: Quick = False,
    no_floor: NoFloor = False,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    dtype: DtypeOption = DEFAULT.dtype,
    threads: Threads = DEFAULT.threads,
    serve_args: ServeArgs = "",
    source: ModelSource = Source.AUTO,
) -> None:
    """Measure a server, or two interleaved: rising concurrency, long prompts, joining and leaving clients, memory.

    Fails (exit code 1) if a request failed. Ctrl-C ends the measurement early (130). Results so far are printed and
    written in both cases.
    """
    from sluiceway_lab.bench import SCENARIOS, BenchConfig
    from sluiceway_lab.load.client import Target
    from sluiceway_lab.load.plot import draw
    from sluiceway_lab.load.tables import PLOTTED, show
    from sluiceway_lab.session import RunningServer, Session

    config = BenchConfig(
        levels=parse_levels(levels),
        repeats=repeats,
        tokens=tokens,
        seed=random.randrange(_SEEDS) if seed is None else seed,
        requests=requests,
        scenarios=tuple(scenario or SCENARIOS),
    )
    typed = typed_flags(context)
    refuse_idle_flags(typed, context.params, config.scenarios)
    require_places(json_file, plot)
    target = Target.parse(url, api_key) if url else None
    session = Session(
        config=config.quick(typed) if quick else config,
        rival=RunningServer(target=Target.parse(vs, api_key, flag="vs"), model=vs_model, pid=vs_pid) if vs else None,
        first=_own(model or DEFAULT_MODEL, source, dtype, threads, serve_args)
        if target is None
        else RunningServer(
            target=target,
            model=model_at_url(context, model),
            pid=pid,
            files=_files(weights),
            dtype=dtype,
            threads=threads,
        ),
        measures_floor=not no_floor,
        command=command_line(),
    )
    record = session.run(progress)
    report(record, partial(show, record), json_file)
    if plot is not None:
        draw(record, PLOTTED, plot, over_streams=True)
    if record.is_partial or any(run.errors for run in record.runs):
        raise typer.Exit(INTERRUPTED if record.is_partial else FAILED)


def refuse_idle_flags(typed: Container[str], values: Mapping[str, object], scenarios: Container[str]) -> None:
    """Raises `ConfigError` for a typed flag that has no effect together with the others. `values` has all flags."""
    url, vs, weights = (bool(values[name]) for name in ("url", "vs", "weights"))
    floor = not values["no_floor"]
    runs_already = "has no effect with --url: that server is running already"
    for field, is_of_use, why in (
        ("pid", url, "has no effect without --url"),
        ("weights", url, "has no effect without --url"),
        ("weights", floor, "has no effect with --no-floor: both are measured together"),
        ("vs_model", vs, "has no effect without --vs"),
        ("vs_pid", vs, "has no effect without --vs"),
        ("api_key", url or vs, "has no effect without --url or --vs: the started server needs none"),
        ("serve_args", not url, runs_already),
        ("source", not url, runs_already),
        ("dtype", not url or weights, f"{runs_already}; with --weights it names the format"),
        ("threads", not url or floor, f"{runs_already}, and with --no-floor nothing else is computed"),
        ("tokens", "streams" in scenarios, "has no effect without the scenario streams"),
        ("requests", "soak" in scenarios, "has no effect without --scenario soak"),
    ):
        if field in typed and not is_of_use:
            raise ConfigError(field, why)
    if url and "start" in scenarios and "scenario" in typed:
        raise ConfigError("scenario", "start measures the start of a server, so it has no effect with --url")


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the numbers in rising order, without repetitions. Raises `ConfigError`."""
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError("levels", f"must be numbers separated by commas, not {text!r}") from None


def _files(weights: str | None) -> ModelFiles | None:
    """Find the files on this machine, if they are named."""
    from sluiceway.store.models import resolve

    return None if weights is None else resolve(weights)


def _own(model: str, source: Source, dtype: Dtype, threads: int, serve_args: str) -> OwnServer:
    from sluiceway.cli.pull import fetch
    from sluiceway_lab.session import OwnServer

    try:
        flags = tuple(shlex.split(serve_args))
    except ValueError as fault:
        raise ConfigError("serve_args", f"cannot be split: {fault}") from None
    return OwnServer(files=fetch(model, source), dtype=dtype, threads=threads, flags=flags)
