"""What is measured of a server, on scripted servers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sluiceway.obs.metrics import Metrics
from sluiceway_lab.load import scenarios
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.processes import ProcessUsage
from sluiceway_lab.load.record import Weights
from sluiceway_lab.load.scenarios import (
    SOAK_PARTS,
    Observed,
    cpu_figures,
    engine_figures,
    joiner,
    joiner_figures,
    leaver,
    memory_figures,
    observe,
    one_by_one,
    prefill,
    read_all,
    soak,
    split_costs,
    stream_figures,
    together,
)
from sluiceway_lab.load.target_server import Samples, parse_samples
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
from support.snapshots import engine_stats
from support.target_servers import target_server

PATH = "/v1/completions"
METRICS = "/metrics"
LONG = {"cpu_api_s": 0.140, "requests": 20.0, "chunks_per_token": 0.5, "tokens": 2560.0}
SHORT = {"cpu_api_s": 0.056, "requests": 20.0, "chunks_per_token": 1.0, "tokens": 160.0}
WEIGHTS = Weights(dtype="bfloat16", parameters=1_000_000, head_parameters=250_000, step_bytes=2_000_000)


def gauges(n_running: int) -> bytes:
    text = f"llamacpp:requests_processing {n_running}\nllamacpp:requests_deferred 0\n"
    return plain(200, text.encode(), "text/plain")


def answer(started_s: float, *chunk_s: float, completion_tokens: int | None = None) -> Answer:
    return Answer(
        started_s=started_s,
        chunk_s=chunk_s,
        prompt_tokens=None,
        completion_tokens=completion_tokens,
        n_bytes=100,
    )


async def test_prefill_counts_prompt_tokens() -> None:
    async with scripted_server({PATH: completion_stream(1, n_prompt=1005)}) as server:
        run = await prefill(target_server(server.target), seed=0, repeat=2)
    assert run.figures["prompt_tokens"] == 4020.0
    assert run.figures["prompt_tokens_per_s"] == pytest.approx(4020.0 / run.figures["makespan_s"])
    prompts = [body["prompt"] for _, _, body in server.requests]
    assert [len(prompt.split()) for prompt in prompts] == [1000] * 4 and len(set(prompts)) == 4
    assert {body["max_tokens"] for _, _, body in server.requests} == {1}


async def test_prefill_has_no_rate_when_the_server_does_not_count() -> None:
    async with scripted_server({PATH: stream(token("a"), b"data: [DONE]\n\n")}) as server:
        run = await prefill(target_server(server.target), seed=0, repeat=0)
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
    assert ("chunks_read" in run.figures) == is_streaming
    assert leaving.bodies[0]["stream"] is is_streaming


async def test_leaver_gives_up_on_a_server_that_is_never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "_PATIENCE_S", 0.05)
    async with scripted_server({METRICS: [gauges(1)]}) as server:
        with pytest.raises(LoadError, match=r"0.05 s in vain for the server to be idle"):
            await leaver(target_server(server.target, kind="llama.cpp"), 0, 0, is_streaming=True)


def test_memory_is_that_of_all_processes() -> None:
    figures = memory_figures(target_server(processes={os.getpid(): "api"}))
    assert figures["pss_bytes"] == figures["pss_api_bytes"] > 0
    assert figures["rss_bytes"] >= figures["pss_bytes"]
    assert memory_figures(target_server(processes={2**22 + 1: "gone"})) == {}


async def test_simultaneous_streams_are_all_read() -> None:
    async with scripted_server({PATH: completion_stream(5)}) as server:
        ours = target_server(server.target)
        requests = [ours.request(f"prompt {index}", 5) for index in range(8)]
        seen = await observe(ours, lambda: together(ours, requests))
    assert [one.n_tokens for one in seen.answers] == [5] * 8 and seen.errors == []
    assert sorted(body["prompt"] for _, _, body in server.requests) == [f"prompt {index}" for index in range(8)]
    assert seen.costs.keys() == {"cpu_client_s"} and seen.costs["cpu_client_s"] > 0


async def test_streams_are_read_one_after_another() -> None:
    async with scripted_server({PATH: completion_stream(2)}) as server:
        ours = target_server(server.target)
        answers, _ = read_all(await one_by_one(ours, [ours.request(text, 2) for text in "abc"]))
    assert [body["prompt"] for _, _, body in server.requests] == ["a", "b", "c"]
    ends = [one.chunk_s[-1] for one in answers]
    assert all(end_s < later.started_s for end_s, later in zip(ends, answers[1:], strict=False))


async def test_failed_request_is_reported_with_the_other_answers() -> None:

    def answering(body: dict[str, str]) -> Sequence[bytes]:
        broken = {"refused": [plain(503, b"busy")], "broken": stream(token("a"))}
        return broken.get(body["prompt"]) or completion_stream(3)

    async with scripted_server({PATH: answering}) as server:
        ours = target_server(server.target)
        requests = [ours.request(text, 3) for text in ("good", "refused", "broken")]
        seen = await observe(ours, lambda: together(ours, requests))
    assert len(seen.answers) == 1
    assert seen.errors == ["the server refused (503): busy", "the server broke off the answer"]


async def test_server_that_answers_nothing_is_not_measured() -> None:
    async with scripted_server({PATH: [plain(503, b"busy")]}) as server:
        ours = target_server(server.target)
        with pytest.raises(LoadError, match=r"^s: the server refused \(503\): busy"):
            await observe(ours, lambda: together(ours, [ours.request("p", 1)]))
        with pytest.raises(LoadError, match="^s: nothing was asked"):
            await observe(ours, lambda: together(ours, []))
    with pytest.raises(LoadError, match="no answer from"):
        await observe(ours, lambda: together(ours, [ours.request("p", 1)]))


def test_figures_are_of_all_streams_together() -> None:
    answers = [answer(10.0, 11.0, 12.0, completion_tokens=4), answer(10.5, 12.0, 12.0, 15.0)]
    seen = Observed(answers, ["one failed"], {"cpu_client_s": 0.5, "cpu_api_s": 2.0, "cpu_tokenizer_s": 1.75})
    assert (
        stream_figures(seen, 4).items()
        >= {
            "tokens": 7.0,
            "makespan_s": 5.0,
            "tokens_per_s": 1.4,
            "first_token_min_s": 1.0,
            "first_token_max_s": 1.5,
            "itl_min_s": 0.0,
            "itl_max_s": 3.0,
            "bytes_per_token": 200 / 7,
            "chunks_per_token": 5 / 7,
            "short_answers": 1.0,
            "cpu_client_s": 0.5,
            "cpu_api_per_chunk_s": 0.4,
            "cpu_tokenizer_per_token_s": 0.25,
        }.items()
    )


def test_processor_time_is_what_was_added() -> None:
    before = {"api": ProcessUsage(1.0), "gone": ProcessUsage(9.0)}
    after = {"api": ProcessUsage(1.5) + ProcessUsage(0.25), "engine": ProcessUsage(2.0)}
    assert cpu_figures(before, after) == {"cpu_api_s": 0.75, "cpu_engine_s": 2.0, "cpu_server_s": 2.75}
    assert cpu_figures(before, {}) == {}


def test_costs_are_separated_by_long_and_short_answers() -> None:
    """7 ms for 64 events and 2.8 ms for 8 events: 75 µs for each event, and 2.2 ms for the request."""
    split = split_costs(LONG, SHORT)
    assert split["cpu_api_per_further_chunk_s"] == pytest.approx(75e-6)
    assert split["cpu_api_per_request_s"] == pytest.approx(2.2e-3)


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (LONG, {}),
        ({name: value for name, value in LONG.items() if name != "cpu_api_s"}, SHORT),
        (LONG, LONG | {"cpu_api_s": 0.2}),
    ],
    ids=["short ones failed", "no process is seen", "equally long"],
)
def test_costs_are_not_split_where_nothing_tells_them_apart(long: dict[str, float], short: dict[str, float]) -> None:
    assert split_costs(long, short) == {}


def answering(body: dict[str, Any]) -> Sequence[bytes]:
    return completion_stream(body["max_tokens"])


async def test_parts_are_all_requests_and_none_twice() -> None:
    async with scripted_server({"/v1/completions": answering}) as server:
        parts = [await soak(target_server(server.target), 33, 4, 0, part) for part in range(SOAK_PARTS)]
        prompts = [body["prompt"] for _, _, body in server.requests]
    assert len(prompts) == len(set(prompts)) == 33
    assert sum(part.figures["requests"] for part in parts) == 33
    assert all(part.figures["requests_per_s"] > 0 and not part.errors for part in parts)


async def test_memory_is_looked_at_after_a_part() -> None:
    async with scripted_server({"/v1/completions": answering}) as server:
        seen = await soak(target_server(server.target, processes={os.getpid(): "api"}), 10, 1, 0, 0)
        unseen = await soak(target_server(server.target), 10, 1, 0, 0)
    assert seen.figures["pss_bytes"] == seen.figures["pss_api_bytes"] > 0
    assert unseen.figures.keys() == {"requests", "requests_per_s"}


async def test_part_is_over_when_too_much_fails() -> None:
    async with scripted_server({"/v1/completions": [plain(503, b"busy")]}) as server:
        part = await soak(target_server(server.target), 10_000, 2, 0, 0)
        assert len(server.requests) == len(part.errors) == 101
    assert set(part.errors) == {"the server refused (503): busy"}


def scraped(metrics: Metrics) -> Samples:
    return parse_samples(metrics.render().decode())


def two_scrapes() -> tuple[Samples, Samples]:
    """Four steps of half a second between them. The first scrape has the same counts."""
    metrics = Metrics()
    metrics.engine_stepped(
        engine_stats(step_s=5.0, plan_s_total=1.0, model_s_total=4.0, prompt_tokens_total=9, generated_tokens_total=9)
    )
    before = scraped(metrics)
    for _ in range(4):
        metrics.engine_stepped(
            engine_stats(
                step_s=0.5,
                plan_s_total=1.5,
                model_s_total=5.6,
                commit_s_total=0.1,
                publish_s_total=0.2,
                prompt_tokens_total=109,
                generated_tokens_total=13,
            )
        )
    return before, scraped(metrics)


def test_time_is_shared_out() -> None:
    figures = engine_figures(*two_scrapes(), None)
    assert figures == pytest.approx(
        {
            "steps": 4,
            "step_mean_s": 0.5,
            "model_step_mean_s": 0.4,
            "overhead_step_mean_s": 0.2,
            "model_share": 1.6 / 2.4,
            "scheduler_share": 0.6 / 2.4,
            "delivery_share": 0.2 / 2.4,
        }
    )


def test_work_is_set_against_the_weights() -> None:
    """Bytes count once per step, operations per token, those of the head for generated tokens only."""
    figures = engine_figures(*two_scrapes(), WEIGHTS)
    assert figures["weights_gb_per_s"] == pytest.approx(4 * 2_000_000 / 1.6 / 1e9)
    assert figures["gflop_per_s"] == pytest.approx(2 * (750_000 * 104 + 250_000 * 4) / 1.6 / 1e9)


def test_nothing_is_said_when_no_step_ran() -> None:
    before, _ = two_scrapes()
    assert engine_figures(before, before, WEIGHTS) == {}
    assert engine_figures({}, {}, WEIGHTS) == {}
