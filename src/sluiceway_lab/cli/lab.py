"""`sluiceway lab`: runs one experiment, and prints its table and verdicts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sluiceway.cli.exits import FAILED, command
from sluiceway.cli.options import ModelSource, model_at_url, option
from sluiceway.errors import ConfigError
from sluiceway.store.catalog import DEFAULT_MODEL, Source
from sluiceway_lab.cli.records import JsonFile, LabModel, PlotFile, command_line, progress, report, require_places

if TYPE_CHECKING:
    from sluiceway_lab.session import OwnServer, RunningServer

_SMOKE_FLAGS = ("--fake-step", "0.002")
"""Slow enough that a stream is still running when something happens to it."""

LabName = Annotated[str | None, typer.Argument(help="The experiment, see --list.", metavar="NAME", show_default=False)]
Smoke = Annotated[
    bool, option("--smoke", "Run in seconds on the fake model, to see that it works. Times are not judged.")
]
LabUrl = Annotated[str | None, option("--url", "A running server, if the experiment needs no flags.")]
LabKey = Annotated[str | None, option("--api-key", "Sent to --url as a bearer token.")]
LabSeed = Annotated[int, option("--seed", "Seed of the prompts.", variable="SLUICEWAY_PROMPT_SEED")]
ListExperiments = Annotated[bool, option("--list", "List the names of all experiments.")]


@command
def lab(
    context: typer.Context,
    name: LabName = None,
    model: LabModel = None,
    smoke: Smoke = False,
    url: LabUrl = None,
    api_key: LabKey = None,
    seed: LabSeed = 0,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    source: ModelSource = Source.AUTO,
    list_experiments: ListExperiments = False,
) -> None:
    """Run an experiment about streams: what they share, and what slow, lost and leaving readers cost.

    A refuted hypothesis is a result (exit code 0). A request that fails is an error (exit code 1).
    """
    from sluiceway_lab.experiments.registry import experiment_of, experiments
    from sluiceway_lab.experiments.report import show
    from sluiceway_lab.experiments.session import LabSession
    from sluiceway_lab.load.plot import draw

    if list_experiments:
        for one in experiments():
            typer.echo(f"{one.name:<14}{one.question}")
        return
    if name is None:
        raise ConfigError("NAME", "name an experiment; --list shows them")
    experiment = experiment_of(name)
    require_places(json_file, plot)
    session = LabSession(
        experiment=experiment,
        first=_first(model if url is None else model_at_url(context, model), source, url, api_key, is_smoke=smoke),
        is_smoke=smoke,
        seed=seed,
        command=command_line(),
    )
    record = session.run(progress)
    report(record, partial(show, record, experiment), json_file)
    if plot is not None:
        draw(record, experiment.drawn_columns, plot, over_streams=experiment.is_drawn_over_streams)
    if any(run.errors for run in record.runs):
        raise typer.Exit(FAILED)


def _first(
    model: str | None, source: Source, url: str | None, api_key: str | None, *, is_smoke: bool
) -> OwnServer | RunningServer:
    """Return the running server, or what it takes to start one. Raises `ConfigError` for flags without effect."""
    from sluiceway.cli.pull import fetch
    from sluiceway_lab.load.client import Target
    from sluiceway_lab.session import OwnServer, RunningServer

    if url is not None:
        return RunningServer(target=Target.parse(url, api_key), model=model)
    if api_key is not None:
        raise ConfigError("api_key", "has no effect without --url: the started server needs none")
    if is_smoke:
        return OwnServer(files=fetch("fake", source), flags=_SMOKE_FLAGS)
    return OwnServer(files=fetch(model or DEFAULT_MODEL, source))
