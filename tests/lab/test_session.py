"""A session of `bench`, on scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway_lab import session
from sluiceway_lab.bench import BenchConfig
from sluiceway_lab.load import machine
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.machine import FloorRequest, MachineFloor
from sluiceway_lab.session import OwnServer, RunningServer, Session
from support.records import FLOOR, WEIGHTS
from support.scripted_http import completion_stream, plain, scripted_server

CONFIG = BenchConfig(levels=(1, 2), repeats=1, tokens=3, alone=1, scenarios=("start", "streams"))
MODEL = ModelFiles(kind=ModelKind.GGUF, path="/models/m.gguf", name="m")


def answering(body: dict[str, Any]) -> Sequence[bytes]:
    return completion_stream(body["max_tokens"])


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A server in a thread, because a session has its own loop."""
    started = threading.Event()
    found: list[Target] = []
    stop = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        models = plain(200, b'{"data":[{"id":"m"}]}')
        async with scripted_server({"/v1/models": [models], "/v1/completions": answering}) as server:
            found.append(server.target)
            loops.append(asyncio.get_running_loop())
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    yield found[0]
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[FloorRequest]:
    """The requests for the floor, which are answered without a measurement."""
    asked: list[FloorRequest] = []

    def ask(question: FloorRequest) -> MachineFloor:
        asked.append(question)
        return MachineFloor(floor=FLOOR, weights=None if question.files is None else WEIGHTS)

    monkeypatch.setattr(machine, "measure_floor", ask)
    return asked


def run(first: OwnServer | RunningServer, **fields: Any) -> Any:
    return Session(config=CONFIG, first=first, command=["sluiceway", "bench"], **fields).run(lambda line: None)


def test_record_says_all_of_it(target: Target, questions: list[FloorRequest]) -> None:
    record = run(RunningServer(target=target))
    assert (record.schema, record.experiment, record.command) == ("sluiceway.lab/2", "bench", ["sluiceway", "bench"])
    assert list(record.config["levels"]) == [1, 2]
    assert [one.name for one in record.servers] == [target.url]
    assert [(one.scenario, one.streams) for one in record.runs] == [("alone", 1), ("together", 1), ("together", 2)]
    assert [(one.scenario, one.streams) for one in record.summary] == [("alone", 1), ("together", 1), ("together", 2)]
    assert (record.floor, record.weights, record.ratios) == (FLOOR, None, [])
    assert questions == [FloorRequest()]
    assert record.duration_s > 0 and record.started_at.endswith("+00:00")


def interrupted(target: Target, *, after: int) -> Any:
    """The record of a measurement that Ctrl-C ends after this many lines of progress."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == after:
            signal.raise_signal(signal.SIGINT)

    return Session(config=CONFIG, first=RunningServer(target=target), measures_floor=False).run(say)


def test_interruption_leaves_the_runs_that_had_been_made(target: Target) -> None:
    record = interrupted(target, after=3)
    assert record.is_partial
    places = [("alone", 1), ("together", 1)]
    assert [(one.scenario, one.streams) for one in record.runs] == places
    assert [(one.scenario, one.streams) for one in record.summary] == places
    assert not run(RunningServer(target=target), measures_floor=False).is_partial


def test_interruption_before_the_first_run_leaves_nothing(target: Target) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(target, after=1)


def test_rival_is_interleaved_and_compared_with_the_first(target: Target) -> None:
    other = Target("localhost", target.port)
    record = run(RunningServer(target=target, model="m"), rival=RunningServer(target=other), measures_floor=False)
    assert [one.name for one in record.servers] == [target.url, other.url]
    assert [(one.scenario, one.streams) for one in record.ratios] == [("alone", 1), ("together", 1), ("together", 2)]
    assert record.floor is None


def test_rival_of_the_same_name_is_called_by_its_address(target: Target) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "meet", _meet_as_one_kind)
        record = run(
            RunningServer(target=target),
            rival=RunningServer(target=Target("localhost", target.port)),
            measures_floor=False,
        )
    assert [one.name for one in record.servers] == ["kind", f"http://localhost:{target.port}"]


async def _meet_as_one_kind(target: Target, **fields: Any) -> Any:
    from support.target_servers import target_server

    return target_server(target, name="kind")


class StartedServer:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.pid = os.getpid()

    async def ready(self) -> float:
        return 1.5


def test_server_of_its_own_is_started_and_ended(
    target: Target, questions: list[FloorRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor is measured before the server starts."""
    events: list[object] = []

    @contextlib.contextmanager
    def own_server(model: str, flags: Sequence[str]) -> Iterator[StartedServer]:
        events.extend([len(questions), model, *flags])
        yield StartedServer(target)
        events.append("ended")

    monkeypatch.setattr(session, "own_server", own_server)
    record = run(OwnServer(files=MODEL, dtype="bfloat16", threads=2, flags=("--max-running", "8")))
    flags = ["--served-model-name", "m", "--dtype", "bfloat16", "--threads", "2", "--max-running", "8"]
    assert events == [1, "/models/m.gguf", *flags, "ended"]
    assert record.servers[0].serve_flags == flags
    assert record.runs[0].figures == {"ready_s": 1.5}
    assert record.weights == WEIGHTS
    assert questions == [FloorRequest(threads=2, dtype="bfloat16", files=MODEL)]


def test_fake_model_has_no_weights(
    target: Target, questions: list[FloorRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    @contextlib.contextmanager
    def own_server(model: str, flags: Sequence[str]) -> Iterator[StartedServer]:
        served.append(model)
        yield StartedServer(target)

    monkeypatch.setattr(session, "own_server", own_server)
    assert run(OwnServer(files=ModelFiles(kind=ModelKind.FAKE, path="", name="fake"))).weights is None
    assert (served, questions) == (["fake"], [FloorRequest()])


def test_weights_of_a_running_server_are_named_by_its_owner(target: Target, questions: list[FloorRequest]) -> None:
    record = run(RunningServer(target=target, files=MODEL, dtype="float32", threads=1))
    assert record.weights == WEIGHTS
    assert questions == [FloorRequest(threads=1, dtype="float32", files=MODEL)]


def test_server_that_does_not_answer_is_a_sentence() -> None:
    with pytest.raises(LoadError, match="no answer from http://127.0.0.1:1"):
        run(RunningServer(target=Target("127.0.0.1", 1)), measures_floor=False)
