"""Makes labs with given runs, and answers of the native protocol."""

from __future__ import annotations

import json
from typing import Any

from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.record import Run, Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.session import RunningServer
from support.scripted_http import STREAM_END, STREAM_HEAD, chunk
from support.target_servers import NOWHERE


def lab_of(*runs: Run, **fields: Any) -> Lab:
    """A lab with these runs. Unless `fields` change it, it prints nothing and is no smoke run."""
    given: dict[str, Any] = {
        "first": RunningServer(target=NOWHERE),
        "is_smoke": False,
        "seed": 0,
        "say": lambda line: None,
    }
    return Lab(**given | fields, runs=list(runs))


async def _found(lab: Lab) -> list[Verdict]:
    lab.note("s", "twice", {"took_s": 0.5}, streams=2)
    return [
        Verdict("it is quick", True, "0.5 s"),
        Verdict("it is free", False, "it costs 1"),
        Verdict("it is", None, "?"),
    ]


def experiment(**fields: Any) -> Experiment:
    """An experiment without a server and without work."""
    given: dict[str, Any] = {
        "name": "naps",
        "question": "How long is a nap?",
        "run": _found,
        "columns": (Column("took_s", "took ms", 1e3), Column("none", "not there")),
        "drawn": ("took_s",),
        "not_shown": ("dreams",),
    }
    return Experiment(**given | fields)


def native_event(place: int, name: str, **fields: Any) -> bytes:
    return f"id: {place}\nevent: {name}\ndata: {json.dumps(fields)}\n\n".encode()


def native_events(*token_ids: int, reason: str = "length") -> list[bytes]:
    """A native stream of these tokens, with `start` and `done`, each event with its id."""
    usage = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": len(token_ids)}
    tokens = [native_event(place + 2, "token", index=place, id=one, text="a") for place, one in enumerate(token_ids)]
    end = native_event(len(token_ids) + 2, "done", reason=reason, stop=None, usage=usage)
    return [native_event(1, "start", id="s-1", prompt_tokens=1), *tokens, end]


def native_answer(*events: bytes) -> list[bytes]:
    """These events over HTTP, each in its own chunk."""
    head = STREAM_HEAD.removesuffix(b"\r\n") + b"x-stream-id: s-1\r\nx-request-id: r-1\r\n\r\n"
    return [head, *(chunk(one) for one in events), STREAM_END]
