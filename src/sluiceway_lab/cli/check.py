"""`sluiceway check`: asks any server that speaks the OpenAI protocol the questions of the lab."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from sluiceway.cli.exits import FAILED, command
from sluiceway.cli.options import URL_MODEL_VARIABLE, inside, option
from sluiceway.errors import ConfigError
from sluiceway.ranges import Range
from sluiceway_lab.cli.records import JsonFile, command_line, progress, report, require_places

CheckUrl = Annotated[
    str | None,
    typer.Argument(help="The server, like http://127.0.0.1:8000.", envvar="SLUICEWAY_URL", metavar="URL"),
]
CheckModel = Annotated[
    str | None, option("--model", "The server's name for its model (default: its first).", variable=URL_MODEL_VARIABLE)
]
CheckKey = Annotated[str | None, option("--api-key", "Sent as a bearer token.")]
Only = Annotated[list[str] | None, option("--only", "Ask only this question. May be repeated. See --list.")]
CheckPid = Annotated[
    int | None, option("--pid", "First process of the server, if it runs on this machine: for its memory.")
]
DrainPid = Annotated[int | None, option("--drain-pid", "Process that the last question stops with SIGTERM.")]
Timeout = Annotated[
    float,
    option(
        "--timeout",
        "Seconds for each question. A question that takes longer is unknown.",
        min=1.0,
        callback=inside(Range(1, 86_400)),
    ),
]
Total = Annotated[
    float,
    option(
        "--total",
        "Seconds for all questions. Those left then are not asked.",
        min=1.0,
        callback=inside(Range(1, 86_400)),
    ),
]
ListQuestions = Annotated[bool, option("--list", "List the questions that `check` asks.")]


@command
def check(
    url: CheckUrl = None,
    model: CheckModel = None,
    api_key: CheckKey = None,
    only: Only = None,
    json_file: JsonFile = None,
    pid: CheckPid = None,
    drain_pid: DrainPid = None,
    timeout: Timeout = 120.0,
    total: Total = 1800.0,
    list_questions: ListQuestions = False,
) -> None:
    """Ask a server how it treats streams: overlap, isolation, slow and leaving readers, ends, overload, drain.

    Works with any server that speaks the OpenAI protocol. Takes minutes, in which the server should have nothing else
    to do. Fails (exit code 1) if the server failed a question.
    """
    from sluiceway_lab.check.question import CheckConfig
    from sluiceway_lab.check.session import CheckSession, chosen, show
    from sluiceway_lab.load.client import Target

    questions = chosen(only or [])
    if list_questions:
        for question in questions:
            typer.echo(f"{question.name:<20}{question.asks}")
        return
    if url is None:
        raise ConfigError("URL", "name a server, like http://127.0.0.1:8000")
    require_places(json_file)
    session = CheckSession(
        target=Target.parse(url, api_key, flag="URL"),
        questions=questions,
        config=CheckConfig(timeout_s=timeout),
        model=model,
        pid=pid,
        drain_pid=drain_pid,
        total_s=total,
        command=command_line(),
    )
    record = session.run(progress)
    report(record, partial(show, record), json_file)
    if record.has_failed:
        raise typer.Exit(FAILED)
