"""`sluiceway check`: asks any server that speaks the OpenAI protocol the questions of the lab."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluiceway.cli.exits import FAILED, command
from sluiceway.cli.options import URL_MODEL_VARIABLE, finite, option
from sluiceway.errors import ConfigError
from sluiceway_lab.cli.records import JsonFile, console_beside, require_place, write_record

if TYPE_CHECKING:
    from sluiceway_lab.load.record import Record

_PIPE_COLUMNS = 160
"""Wide enough that sentences take few lines when the output is not a terminal."""

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
        "--timeout", "Seconds for each question. A question that takes longer is unknown.", min=1.0, callback=finite
    ),
]
Total = Annotated[
    float,
    option("--total", "Seconds for all questions. Those left then are not asked.", min=1.0, callback=finite),
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
    from sluiceway_lab.check.session import CheckSession, chosen
    from sluiceway_lab.load.client import Target

    questions = chosen(only or [])
    if list_questions:
        for question in questions:
            typer.echo(f"{question.name:<20}{question.asks}")
        return
    if url is None:
        raise ConfigError("URL", "name a server, like http://127.0.0.1:8000")
    require_place(json_file, "json")
    session = CheckSession(
        target=Target.parse(url, api_key, flag="URL"),
        questions=questions,
        config=CheckConfig(timeout_s=timeout),
        model=model,
        pid=pid,
        drain_pid=drain_pid,
        total_s=total,
        command=["sluiceway", *sys.argv[1:]],
    )
    record = session.run(lambda line: typer.echo(line, err=True))
    report(record, json_file)
    if record.has_failed:
        raise typer.Exit(FAILED)


def report(record: Record, json_file: Path | None) -> None:
    """Print the score card, then write the JSON record. If the record goes to standard output, the card does not.

    The file is written last, so a full disk costs only the file.
    """
    from sluiceway_lab.check.session import show

    show(record, console_beside(json_file, _PIPE_COLUMNS))
    write_record(record, json_file)
