"""The runs of a benchmark, on scripted servers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.bench import ALL_SCENARIOS, BenchConfig, bench_runs, completed, jobs
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Run, Say
from sluiceway_lab.load.scenarios import SOAK_PARTS
from sluiceway_lab.load.target_server import TargetServer
from support.records import run
from support.scripted_http import ScriptedServer, completion_stream, plain, scripted_server
from support.target_servers import target_server

SMALL = BenchConfig(levels=(1, 2, 3), repeats=4, tokens=5, alone=2, scenarios=("streams",))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    def answering(body: dict[str, Any]) -> Sequence[bytes]:
        return completion_stream(body["max_tokens"])

    async with scripted_server({"/v1/completions": answering}) as script:
        yield script


async def run_bench(config: BenchConfig, servers: Sequence[TargetServer], say: Say) -> list[Run]:
    """All runs of it."""
    return completed([run async for run in bench_runs(config, servers, say)])


def places(runs: Sequence[Run]) -> list[tuple[str, str, int, int]]:
    return [(one.server, one.scenario, one.streams, one.repeat) for one in runs]


async def test_levels_are_repeated_in_rounds(server: ScriptedServer) -> None:
    """The lowest level, the highest, and one after another in each round; the others at most three times."""
    lines: list[str] = []
    runs = await run_bench(SMALL, [target_server(server.target)], lines.append)
    a_round = [("alone", 1), ("together", 1), ("together", 2), ("together", 3)]
    expected = [("s", *what, repeat) for repeat in range(4) for what in a_round if repeat < 3 or what[1] != 2]
    assert places(runs) == expected
    assert len(lines) == 1 + len(runs)
    assert lines[0] == "s: warming up" and lines[1].startswith("s, alone 1, repeat 0: tokens_per_s ")


async def test_prompts_are_never_the_same_twice(server: ScriptedServer) -> None:
    await run_bench(SMALL, [target_server(server.target)], lambda line: None)
    prompts = [body["prompt"] for _, _, body in server.requests]
    # Three for the warm-up; in each round two back-to-back, then one, two and three together; not two in the last.
    assert len(prompts) == len(set(prompts)) == 3 + 4 * (2 + 1 + 3) + 3 * 2


async def test_speed_is_set_against_back_to_back(server: ScriptedServer) -> None:
    runs = await run_bench(SMALL, [target_server(server.target)], lambda line: None)
    alone = {one.repeat: one.figures["tokens_per_s"] for one in runs if one.scenario == "alone"}
    for one in runs:
        if one.scenario == "together" and one.streams > 1:
            expected = one.figures["tokens_per_s"] / alone[one.repeat]
            assert one.figures["over_alone"] == pytest.approx(expected, rel=1e-4)
        else:
            assert "over_alone" not in one.figures


async def test_short_answers_tell_what_a_request_costs(server: ScriptedServer) -> None:
    """If the processes are known, each round also runs the highest level with short answers."""
    config = BenchConfig(levels=(1, 2), repeats=2, tokens=16, alone=1, scenarios=("streams",))
    seen = target_server(server.target, processes={os.getpid(): "api"})
    runs = await run_bench(config, [seen], lambda line: None)
    assert [one.streams for one in runs if one.scenario == "together_short"] == [2, 2]
    assert [one.figures["tokens"] for one in runs if one.scenario == "together_short"] == [4.0, 4.0]
    split = [one for one in runs if "cpu_api_per_request_s" in one.figures]
    assert [(one.scenario, one.streams) for one in split] == [("together", 2)] * 2


def test_costs_are_split_within_a_repeat() -> None:
    long = {"cpu_api_s": 0.14, "requests": 2.0, "chunks_per_token": 1.0, "tokens": 128.0}
    short = {"cpu_api_s": 0.028, "requests": 2.0, "chunks_per_token": 1.0, "tokens": 16.0}
    runs = [
        run("s", "together", 2, 0, **long),
        run("s", "together_short", 2, 0, **short),
        run("s", "together", 2, 1, **long),
        run("s", "together_short", 2, 1),
        run("s", "together", 1, 0, **long),
    ]
    made = completed(runs)
    assert made[0].figures == long | {"cpu_api_per_further_chunk_s": 0.001, "cpu_api_per_request_s": 0.006}
    assert made[1:] == runs[1:]


async def test_servers_are_interleaved(server: ScriptedServer) -> None:
    pair = [target_server(server.target, name=name) for name in "ab"]
    config = BenchConfig(levels=(1,), repeats=2, tokens=2, alone=1, scenarios=("streams", "prefill", "joiner"))
    runs = await run_bench(config, pair, lambda line: None)
    for scenario in ("alone", "together", "prefill", "joiner"):
        assert [one.server for one in runs if one.scenario == scenario] == ["a", "b", "b", "a"]


async def test_what_is_not_known_of_a_server_is_not_run(server: ScriptedServer) -> None:
    """Without gauges it is unknown when a server is idle; without processes, how much memory it has."""
    config = BenchConfig(levels=(1,), repeats=1, tokens=2, scenarios=("close", "memory", "start"))
    lines: list[str] = []
    with pytest.raises(LoadError, match="^nothing of close, memory, start can be measured of these servers$"):
        await run_bench(config, [target_server(server.target)], lines.append)
    assert [line.partition(",")[0] for line in lines] == ["s: close is left out", "s: memory is left out"]
    ours = target_server(server.target, processes={os.getpid(): "api"}, ready_s=1.23456789)
    runs = await run_bench(config, [ours], lambda line: None)
    assert [one.scenario for one in runs] == ["start", "memory"]
    assert runs[0].figures == {"ready_s": 1.23457}


async def test_run_that_fails_is_one_without_figures() -> None:

    def answering(body: dict[str, Any]) -> Sequence[bytes]:
        is_warm_up = body["max_tokens"] == 4
        return completion_stream(4) if is_warm_up else [plain(503, b"busy")]

    async with scripted_server({"/v1/completions": answering}) as server:
        runs = await run_bench(SMALL.quick(), [target_server(server.target)], lambda line: None)
    assert places(runs) == [("s", "alone", 1, 0), ("s", "together", 1, 0), ("s", "together", 3, 0)]
    assert all((one.figures, one.errors) == ({}, ["s: the server refused (503): busy"]) for one in runs)


async def test_server_that_answers_nothing_fails_before_the_first_run() -> None:
    async with scripted_server() as server:
        with pytest.raises(LoadError, match="s: the server refused"):
            await run_bench(SMALL, [target_server(server.target)], lambda line: None)


async def test_close_is_for_servers_whose_gauges_are_known() -> None:
    pair = [target_server(name="a"), target_server(name="b", kind="vllm")]
    found = jobs(BenchConfig(repeats=2, scenarios=("close",)), pair)
    assert [(job.server.name, job.kind, job.repeat) for job in found] == [
        ("b", "close_stream", 0),
        ("b", "close_stream", 1),
        ("b", "close_plain", 0),
        ("b", "close_plain", 1),
    ]


async def test_soak_is_a_series_of_parts(server: ScriptedServer) -> None:
    config = BenchConfig(levels=(1, 4), requests=25, scenarios=("soak",))
    runs = await run_bench(config, [target_server(server.target)], lambda line: None)
    assert places(runs) == [("s", "soak", 4, part) for part in range(SOAK_PARTS)]
    assert sum(one.figures["requests"] for one in runs) == 25


async def test_failed_requests_are_in_the_progress() -> None:
    from sluiceway_lab.bench import _progress

    failed = Run(server="s", scenario="together", streams=2, repeat=1, figures={}, errors=["no"])
    assert _progress(failed) == "s, together 2, repeat 1: 1 failed (no)"
    assert _progress(run("s", "start", 0, ready_s=2.5)) == "s, start, repeat 0: ready_s 2.5"
    soaked = run("s", "soak", 8, 3, requests_per_s=900.0, pss_api_bytes=5.04e7)
    assert _progress(soaked) == "s, soak 8, repeat 3: requests_per_s 900, pss_api_bytes 50.4 MB"


def test_quick_is_a_part_of_the_whole() -> None:
    assert BenchConfig().quick() == BenchConfig(levels=(1, 8, 32), repeats=1, tokens=32, alone=4)
    assert BenchConfig(levels=(2, 4), tokens=3).quick() == BenchConfig(levels=(2, 4), repeats=1, tokens=3, alone=4)
    chosen = BenchConfig(repeats=2).quick({"repeats", "levels"})
    assert chosen == BenchConfig(repeats=2, tokens=32, alone=4)
    assert (BenchConfig().short_tokens, BenchConfig(tokens=2).short_tokens) == (8, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"levels": ()}, "levels: must be numbers from 1 to 4096"),
        ({"levels": (0, 1)}, "levels: "),
        ({"levels": (4097,)}, "levels: "),
        ({"repeats": 0}, "repeats: must be at least 1, not 0"),
        ({"tokens": 0}, "tokens: "),
        ({"alone": 0}, "alone: "),
        ({"requests": 0}, "requests: "),
        ({"scenarios": ("streams", "naps")}, f"scenario: must be one of {', '.join(ALL_SCENARIOS)}, not 'naps'"),
    ],
)
def test_setting_is_refused_when_it_makes_no_sense(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        BenchConfig(**fields)
