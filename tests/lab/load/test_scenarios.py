"""The scenarios of `bench`, on scripted servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway_lab.load import scenarios
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.scenarios import joiner, joiner_figures, leaver, memory, prefill, start
from sluiceway_lab.load.transcript import Answer
from support.scripted_http import (
    STALL,
    STREAM_HEAD,
    Pieces,
    ScriptedServer,
    chunk,
    completion_stream,
    plain,
    scripted_server,
    stream,
    token,
)
from support.target_servers import target_server

PATH = "/v1/completions"
METRICS = "/metrics"


def gauges(n_running: int) -> bytes:
    text = f"llamacpp:requests_processing {n_running}\nllamacpp:requests_deferred 0\n"
    return plain(200, text.encode(), "text/plain")


def answer(started_s: float, *chunk_s: float) -> Answer:
    return Answer(
        started_s=started_s,
        chunk_s=chunk_s,
        text="",
        finish_reason=None,
        prompt_tokens=None,
        completion_tokens=None,
        n_bytes=0,
    )


async def test_prefill_counts_prompt_tokens() -> None:
    async with scripted_server({PATH: completion_stream(1, n_prompt=1005)}) as server:
        run = await prefill(target_server(server.target), None, seed=0, repeat=2)
    assert (run.scenario, run.streams, run.repeat, run.figures["prompt_tokens"]) == ("prefill", 4, 2, 4020.0)
    assert run.figures["prompt_tokens_per_s"] == pytest.approx(4020.0 / run.figures["makespan_s"])
    prompts = [body["prompt"] for _, _, body in server.requests]
    assert [len(prompt.split()) for prompt in prompts] == [1000] * 4 and len(set(prompts)) == 4
    assert {body["max_tokens"] for _, _, body in server.requests} == {1}


async def test_prefill_has_no_rate_when_the_server_does_not_count() -> None:
    async with scripted_server({PATH: stream(token("a"), b"data: [DONE]\n\n")}) as server:
        run = await prefill(target_server(server.target), None, seed=0, repeat=0)
    assert "makespan_s" in run.figures and "prompt_tokens_per_s" not in run.figures


def test_stall_counts_until_the_joiner_has_its_first_token() -> None:
    """ITLs before its request are the comparison; ITLs after its first token do not count."""
    joined = answer(10.0, 12.0, 13.0)
    first = answer(0.0, 8.0, 9.0, 11.0, 12.5, 20.0)
    second = answer(0.0, 9.5, 9.9)
    assert joiner_figures(joined, [first, second]) == {
        "joiner_first_token_s": 2.0,
        "resident_stall_s": 2.0,
        "resident_stall_before_s": 1.0,
    }


async def test_joiner_comes_when_eight_streams_run() -> None:
    async with scripted_server({PATH: completion_stream(64)}) as server:
        run = await joiner(target_server(server.target), seed=0, repeat=0)
    assert (run.scenario, run.streams) == ("joiner", 8)
    assert run.figures["resident_stall_before_s"] > 0
    lengths = [len(body["prompt"].split()) for _, _, body in server.requests]
    assert len(lengths) == 9 and lengths[-1] == 1500 and max(lengths[:8]) < 100


async def test_joiner_fails_if_the_residents_end_early() -> None:
    async with scripted_server({PATH: [plain(503, b"busy")]}) as server:
        with pytest.raises(LoadError, match="ended after a few tokens"):
            await joiner(target_server(server.target), seed=0, repeat=0)


class Leaving:
    """A server with one endless answer. Its gauges show when the client has left."""

    def __init__(self) -> None:
        self.server: ScriptedServer | None = None

    def routes(self) -> dict[str, Any]:
        return {PATH: self.answer, METRICS: self.metrics}

    def answer(self, body: Any) -> Iterator[bytes]:
        self.bodies = [body]
        if body["stream"]:
            yield STREAM_HEAD
            for _ in range(64):
                yield chunk(token("a"))
        yield STALL

    def metrics(self, _: Any) -> Pieces:
        assert self.server is not None
        asked = sum(path == PATH for path, _, _ in self.server.requests)
        return [gauges(asked - self.server.n_gone)]


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_leaver_waits_until_nothing_runs(is_streaming: bool) -> None:
    leaving = Leaving()
    async with scripted_server(leaving.routes()) as server:
        leaving.server = server
        run = await leaver(target_server(server.target, kind="llama.cpp"), 0, 0, is_streaming=is_streaming)
        assert server.n_gone == 1
    assert run.figures["until_idle_s"] > 0
    assert run.scenario == ("close_stream" if is_streaming else "close_plain")
    assert ("chunks_read" in run.figures) == is_streaming
    assert leaving.bodies[0]["stream"] is is_streaming


async def test_leaver_gives_up_on_a_server_that_is_never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "_PATIENCE_S", 0.05)
    async with scripted_server({METRICS: [gauges(1)]}) as server:
        with pytest.raises(LoadError, match=r"0.05 s in vain for the server to be idle"):
            await leaver(target_server(server.target, kind="llama.cpp"), 0, 0, is_streaming=True)


def test_memory_is_that_of_all_processes() -> None:
    figures = memory(target_server(processes={os.getpid(): "api"})).figures
    assert figures["pss_bytes"] == figures["pss_api_bytes"] > 0
    assert figures["rss_bytes"] >= figures["pss_bytes"]
    assert memory(target_server(processes={2**22 + 1: "gone"})).figures == {}


def test_start_is_what_was_measured() -> None:
    assert start(target_server(), 1.5).figures == {"ready_s": 1.5}
